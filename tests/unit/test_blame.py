"""Meshes that break although nobody is lost: tries are made ever more slowly, and somebody is found
to blame for them (control A15).
"""

from itertools import pairwise

import pytest
from control_drive import Drive, of, running
from hypothesis import given
from hypothesis import strategies as st

from remesh.orchestrator.control.memory.membership import Node
from remesh.orchestrator.control.memory.suspicions import Suspicions
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState

FOUR = (("head", 1), ("b", 1), ("c", 1), ("d", 1))


def forming(*, nodes=FOUR, **options):
    """The first mesh is asked for."""
    drive = Drive(nodes=nodes, max_dp=8, **options)
    drive.ready()
    if drive.state.phase == "waiting":
        drive.tick()
    return drive


def ranks_of(drive, nodes):
    return {m.rank: m.node for m in drive.state.current.members if m.node in nodes}


def breaks(drive, blind):
    """Every member waits in vain for those that it does not see; if all see all, they train.

    `blind` says whether a pair of nodes does not see each other.
    """
    members = drive.state.current.members
    worst = {m.worker: tuple(o.rank for o in members if blind(m.node, o.node))[:4] for m in members}
    if not any(worst.values()):
        drive.train(drive.state.step + 1)
        return False
    generation = drive.state.last_generation
    for worker, waited_for in worst.items():
        if drive.state.last_generation == generation and waited_for:
            broken = {"error": "timed out", "waited_for": waited_for}
            drive.do(ev.GroupBroken(worker=worker, generation=generation, **broken))
    drive.park(None, held_in=0, generation=generation)
    return True


def until_it_trains(drive, blind, most=12):
    """Meshes that broke before one made a step."""
    for tries in range(most):
        while drive.state.phase == "waiting":
            drive.tick()
            drive.ready()
        if drive.state.phase == "failed" or not breaks(drive, blind):
            return tries
    return most


def in_mesh(drive):
    return sorted({m.node for m in drive.state.current.members})


@pytest.mark.parametrize("bad", ["b", "d"])
def test_a_node_that_reaches_nobody_is_done_without_after_three_tries(bad):
    drive = forming()
    tries = until_it_trains(drive, lambda one, other: bad in (one, other) and one != other)
    assert tries == 3
    assert bad not in in_mesh(drive)
    assert len(in_mesh(drive)) == 3
    assert drive.state.suspicions.guilty == {bad: 1}
    said = [one.text for one in of(cmd.Announce, drive.commands)]
    assert f"the mesh makes steps without node {bad}, which is to blame" in said
    assert drive.state.budget.total == 1


def test_who_is_guilty_needs_no_second_try_and_stays_out_for_longer():
    drive = forming()

    def blind(one, other):
        return "c" in (one, other) and one != other

    until_it_trains(drive, blind)
    drive.lose(*[w.name for w in drive.state.roster.workers.values() if w.node == "c"])
    out_s = drive.state.roster.nodes["c"].until_s - drive.now_s
    for _ in range(20):
        if drive.state.phase == "forming":
            break
        drive.tick()
        drive.ready()
        if drive.state.phase == "draining":
            drive.park(drive.state.step, drained=True)
    assert "c" in in_mesh(drive), "it is tried again after its cool-down"
    assert until_it_trains(drive, blind) == 1
    drive.lose(*[w.name for w in drive.state.roster.workers.values() if w.node == "c"])
    assert drive.state.roster.nodes["c"].until_s - drive.now_s > 1.5 * out_s


def test_of_two_halves_that_do_not_see_each_other_the_larger_one_goes_on():
    nodes = tuple((name, 1) for name in "abcdefg")
    small = {"c", "e", "f"}
    drive = forming(nodes=nodes)
    tries = until_it_trains(drive, lambda one, other: (one in small) != (other in small))
    assert tries <= 4
    assert in_mesh(drive) == ["a", "b", "d", "g"]


def test_where_nobody_is_named_one_node_after_the_other_is_done_without():
    drive = forming(max_failures=8)
    for _ in range(12):
        while drive.state.phase == "waiting":
            drive.tick()
            drive.ready()
        if "c" not in in_mesh(drive):
            drive.train(1)
            break
        drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
        ended = of(cmd.EndWorker, drive.park(None, held_in=0))
        drive.lose(*(command.worker for command in ended))
    assert drive.state.phase in ("running", "draining")
    assert "c" not in in_mesh(drive)
    assert drive.state.suspicions.guilty == {"c": 1}
    kept_out = set(drive.state.quarantine.hosts)
    assert kept_out == {"c"}, "nothing is held against those without whom it broke too"
    assert [node.name for node in drive.state.roster.nodes.values() if node.until_s] == ["c"]


def test_who_alone_does_not_come_is_suspected():
    drive = forming()
    for _ in range(3):
        while drive.state.phase == "waiting":
            drive.tick()
        late = [m.worker for m in drive.state.current.members if m.node == "b"]
        others = [worker for worker in drive.members if worker not in late]
        drive.all(ev.WorkerFormed, workers=others, form_s=0.1)
        drive.tick()
        drive.park(None, held_in=0)
    assert drive.state.roster.nodes["b"].state == "leaving"


def suspected(**options):
    """b, whom the others cannot reach, holds a part of the state that they have not."""
    drive = running(10, nodes=FOUR[:3], max_dp=3, zero_stage=3, **options)
    drive.save(10)
    drive.commit(10)
    drive.steps(14)
    while drive.state.phase != "draining":
        drive.all(ev.GroupBroken, error="timed out", waited_for=(1,), workers=drive.members[:1])
        drive.park(14, held_in=1, generation=drive.state.last_generation)
        if drive.state.phase == "waiting":
            drive.tick()
    return drive, of(cmd.SaveHeld, drive.commands)[-1]


def test_what_only_the_suspect_holds_is_saved_before_the_run_does_without_it():
    """A mesh that takes its state from there would break; seed 3040 went back to a checkpoint."""
    drive, save = suspected()
    assert len(save.workers) == 3
    drive.save(14, generation=save.generation, workers=save.workers)
    name = f"step-14.gen-{save.generation}"
    drive.do(ev.CheckpointCommitted(generation=save.generation, step=14, name=name))
    assert in_mesh(drive) == ["c", "head"]
    assert drive.state.current.from_step == 14
    assert drive.train(15).state.phase == "running"


def test_where_storage_takes_nothing_it_is_given_up():
    drive, save = suspected()
    for worker in save.workers:
        failed = {"generation": save.generation, "step": 14, "error": "No space left on device"}
        drive.do(ev.SaveFailed(worker=worker, **failed))
    assert drive.state.checkpoints.stalled
    assert in_mesh(drive) == ["c", "head"]
    assert drive.state.current.from_step == 10


def test_what_the_others_hold_as_well_is_not_saved_for_that():
    drive = running(10, nodes=FOUR[:3], max_dp=3)
    while drive.state.roster.nodes["b"].state == "used":
        drive.all(ev.GroupBroken, error="timed out", waited_for=(1,), workers=drive.members[:1])
        drive.park(10, held_in=1, generation=drive.state.last_generation)
        if drive.state.phase == "waiting":
            drive.tick()
    assert of(cmd.SaveHeld, drive.commands) == []
    assert in_mesh(drive) == ["c", "head"]


def test_the_run_does_without_nobody_if_the_others_are_too_few():
    drive = forming(nodes=(("head", 1), ("b", 1)), min_workers=2, max_failures=3)
    tries = until_it_trains(drive, lambda one, other: one != other, most=20)
    assert drive.state.phase == "failed"
    assert tries == 12, "three in a row count as one failure"
    assert not drive.state.quarantine.hosts


def test_nor_does_it_if_there_would_be_fewer_nodes_than_asked_for():
    drive = forming(min_nodes=4, max_failures=1)
    until_it_trains(drive, lambda one, other: "b" in (one, other) and one != other)
    assert drive.state.phase == "failed"
    assert not drive.state.quarantine.hosts


def test_tries_that_come_to_nothing_are_made_ever_more_slowly():
    """control A15: 27 generations within seconds ended the run."""
    drive = forming(nodes=(("head", 2),))
    began, waits = drive.now_s, []
    for _ in range(27):
        drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
        drive.park(None, held_in=0)
        if drive.state.phase == "failed":
            break
        if drive.state.phase == "waiting":
            assert "the next mesh is tried in" in drive.state.reason
            before = drive.now_s
            while drive.state.phase == "waiting":
                drive.tick()
            waits.append(round(drive.now_s - before, 3))
    assert drive.state.phase == "failed"
    assert waits[0] == pytest.approx(0.5)
    assert all(after >= before for before, after in pairwise(waits))
    assert drive.now_s - began > 300


def test_no_worker_that_becomes_ready_cuts_the_pause_short():
    drive = forming(nodes=(("head", 2), ("b", 2)))
    for _ in range(2):
        drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
        drive.park(None, held_in=0)
    assert drive.state.phase == "waiting"
    drive.do(ev.NodeJoined(node="c", slots=2))
    drive.ready()
    assert drive.state.phase == "waiting"
    drive.tick()
    assert drive.state.phase == "forming"


def test_a_restore_that_fails_blames_no_node_and_is_tried_again_at_once():
    newest = CheckpointState(step=20, name="step-20")
    drive = forming(resume=newest, fallbacks=(CheckpointState(step=10, name="step-10"),))
    for _ in range(3):
        drive.all(ev.RestoreFailed, name="", error="hash differs", workers=drive.members[:1])
        drive.park(None, held_in=0)
        assert drive.state.phase == "forming"
    assert len(in_mesh(drive)) == 4


def test_a_mesh_that_makes_steps_clears_those_that_were_named_before():
    drive = forming()

    def breaks_for(bad, tries):
        for _ in range(tries):
            rank = next(m.rank for m in drive.state.current.members if m.node == bad)
            worker = next(m.worker for m in drive.state.current.members if m.node == "head")
            drive.all(ev.GroupBroken, error="timed out", waited_for=(rank,), workers=[worker])
            drive.park(None, held_in=0)
            if drive.state.phase == "waiting":
                drive.tick()

    breaks_for("b", 2)
    drive.train(1)
    breaks_for("d", 4)
    assert in_mesh(drive) == ["b", "c", "head"]


def test_nobody_is_tried_without_twice_in_a_row():
    suspicions, nodes = Suspicions(), nodes_of(["n0", "n1", "n2"])
    tried = []
    for _ in range(3):
        (suspect,) = suspicions.suspects(nodes, 3)
        tried.append(suspect.name)
        suspicions.cleared[suspect.name] = None
    assert tried == ["n1", "n2", "n0"]
    assert suspicions.suspects(nodes, 3) == []


def test_where_most_do_not_come_it_is_none_of_them():
    suspicions, nodes = Suspicions(), nodes_of(["n0", "n1", "n2"])
    suspicions.note_absent(["n1", "n2"])
    assert suspicions.suspects(nodes, 3) == []


def test_of_two_that_do_not_see_each_other_the_one_that_is_named_is_suspected():
    for one, other in (("n1", "n2"), ("n2", "n1")):
        suspicions = Suspicions()
        suspicions.note(one, [other])
        assert [node.name for node in suspicions.suspects(nodes_of(["n1", "n2"]), 3)] == [other]


def nodes_of(names):
    made = [Node(name=name, slots=1, domain="", head=name == "n0", host=name) for name in names]
    for node in made:
        node.workers[node.name] = None
    return made


@given(st.integers(3, 24), st.data())
def test_whoever_has_a_bad_link_is_found_in_whatever_order_they_complain(size, data):
    """Each that it does not reach names it, and it names one of them."""
    nodes = nodes_of(f"n{number}" for number in range(size))
    bad = data.draw(st.integers(1, size - 1))
    others = [node.name for node in nodes if node.name != f"n{bad}"]
    saw = data.draw(st.lists(st.sampled_from(others), min_size=2, unique=True))
    suspicions = Suspicions()
    for name in saw:
        suspicions.note(name, [f"n{bad}"])
    suspicions.note(f"n{bad}", [data.draw(st.sampled_from(saw))])
    assert [node.name for node in suspicions.suspects(nodes, 3)] == [f"n{bad}"]


@given(st.integers(2, 20), st.data())
def test_no_more_than_half_is_suspected_and_the_head_only_with_the_smaller_half(size, data):
    names = [f"n{number}" for number in range(size)]
    suspicions = Suspicions()
    pairs = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=30)
    for one, other in data.draw(pairs):
        suspicions.note(one, [other])
    found = suspicions.suspects(nodes_of(names), 3)
    assert len(found) < size
    assert not any(node.head for node in found)


def test_links_within_a_node_are_no_matter():
    suspicions = Suspicions()
    suspicions.note("a", ["a"])
    assert not suspicions.pairs
