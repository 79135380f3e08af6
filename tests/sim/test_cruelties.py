"""Each of the crueller faults does what it says, and each check of a run can fail."""

from dataclasses import replace
from random import Random

import pytest
from control_drive import Drive

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.checkpoint_book import Save
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.commands import Commit, EndWorker, Form
from remesh.orchestrator.control.words.events import (
    ControllerRestarted,
    RestoreFailed,
    RunStarted,
    StopRequested,
)
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import CheckpointState, FreshState, Member
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.sim import draws
from remesh.orchestrator.sim.__main__ import main
from remesh.orchestrator.sim.checks.bounds import Costs, num_cool_downs
from remesh.orchestrator.sim.checks.coverage import everything
from remesh.orchestrator.sim.checks.invariants import Invariants
from remesh.orchestrator.sim.checks.whole_run import WholeRun
from remesh.orchestrator.sim.journal_lines import JournalLines
from remesh.orchestrator.sim.mishaps.cruelties import CRUELTIES
from remesh.orchestrator.sim.mishaps.faults import CRUEL_WEIGHTS, PlannedFault
from remesh.orchestrator.sim.mishaps.strikes import STRIKES
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.slow_storage import SlowStorage
from remesh.orchestrator.sim.shells.world import WHOLE, Settings
from remesh.orchestrator.sim.simulation import Simulation
from remesh.parallel.plan.layout import Layout

SETTINGS = Settings(steps=30, every=10, step_s=0.2, limit_s=4000.0)
COSTS = Costs(meshes=2, kills=1, steps=9, journal_bytes=999, recoveries_s=[0.5], cool_downs=0)


def scene(*faults, seed=1, **settings):
    chosen = [PlannedFault(kind=kind, at_s=at_s) for kind, at_s in faults]
    simulation = Simulation(seed, replace(SETTINGS, **settings), chosen)
    return simulation, simulation.run()


def reached(outcome):
    return outcome.coverage.reached


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("standstill", "event StoodStill"),
        ("hang", "event WorkerStuck"),
        ("bad disk", "event WorkerErred"),
        ("false word", "command Fence"),
        ("unkillable", "event WorkerFrozen"),
        ("device twice", "command EndWorker"),
        ("slow host", "deadline starting"),
    ],
)
def test_a_cruelty_reaches_what_it_is_for(kind, name):
    more = {"devices": True, "slots": 4, "step_s": 4.0 if kind == "slow host" else 0.2}
    runs = [scene((kind, 2.0), seed=seed, **more)[1] for seed in range(4)]
    assert any(reached(outcome)[name] for outcome in runs)


@pytest.mark.parametrize("kind", ["storage stands still", "agent stalls", "partition", "hang"])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_goes_on_to_its_last_step_through(kind, seed):
    assert scene((kind, 2.0), seed=seed)[1].status == "finished"


@pytest.mark.parametrize("seed", range(3))
def test_a_stop_is_saved_however_slow_storage_is(seed):
    simulation, outcome = scene(("stop", 2.0), ("stop twice", 3.0), seed=seed, slow=50.0)
    assert outcome.status == "stopped"
    assert simulation.newest.controller.state.checkpoints.newest_step == outcome.steps > 0


def test_the_next_start_goes_on_where_the_last_one_was_saved():
    simulation, outcome = scene(("stop", 2.0), starts=2)
    first, second = simulation.starts
    assert (outcome.statuses, outcome.status) == (("stopped", "finished"), "finished")
    assert second.options.first_step == first.controller.state.checkpoints.newest_step
    assert second.options.last_generation == first.controller.state.last_generation


def test_after_the_head_has_died_the_next_start_reads_what_was_committed():
    _, outcome = scene(("head dies", 3.0), starts=2)
    assert outcome.statuses == ("crashed", "finished")


def test_a_start_that_was_followed_commits_nothing_more():
    runs = [scene(("second start", 2.0), starts=2, every=3, seed=seed)[1] for seed in range(6)]
    assert all(outcome.status == "finished" for outcome in runs)
    assert any(outcome.statuses[0] == "failed" for outcome in runs)
    assert any("another start has claimed" in line for one in runs for line in one.trace)


def test_a_notice_that_is_long_enough_is_used_to_save_all():
    saved = []
    for seed in range(8):
        simulation, outcome = scene(("head notice", 2.0), seed=seed, slow=20.0)
        newest = simulation.newest.controller.state.checkpoints.newest_step or 0
        saved.append(outcome.status == "preempted" and newest == outcome.steps > 0)
    assert any(saved)


def test_every_cruelty_that_is_drawn_can_strike():
    assert set(CRUELTIES) <= set(CRUEL_WEIGHTS) <= set(STRIKES)


def test_storage_that_stands_still_ends_nothing_before_it_moves():
    agenda, ended = Agenda(), []
    storage = SlowStorage(agenda, Random(0), times=10.0)
    storage.run(agenda.after, 0.1, lambda: ended.append(agenda.now_s))
    storage.stand_still(20.0)
    while agenda.step():
        assert not ended or agenda.now_s >= 20.0
    assert len(ended) == 1


def test_a_lost_word_comes_later_and_a_lost_answer_brings_it_twice():
    agenda, heard = Agenda(), []
    network = Network(agenda, Random(1), doubled=0.0, delayed=0.0, lost=0.5, again_s=1.0)
    for number in range(100):
        network.send("a", lambda number=number: heard.append((number, agenda.now_s)))
    while agenda.step():
        pass
    assert {number for number, _ in heard} == set(range(100))
    assert len(heard) > 100
    assert max(at_s for _, at_s in heard) > 2.0


def test_nodes_that_are_parted_reach_each_other_again_once_joined():
    network = Network(Agenda(), Random(1), doubled=0.0, delayed=0.0, lost=0.0, again_s=1.0)
    network.part(["a"], ["b"])
    assert not network.joins({"a", "b"})
    assert network.joins({"b", "c"})
    network.join()
    assert network.joins({"a", "b"})


@pytest.mark.parametrize("seed", range(5))
def test_a_torn_line_is_as_if_it_had_never_been_written(seed):
    options, lines = Options(steps=9, ladder=WHOLE), JournalLines()
    lines.append(RunStarted(), 1.0)
    lines.append(StopRequested(reason="so"), 2.0)
    lines.tear(Random(seed))
    before = Controller(options)
    before.handle(RunStarted(), 1.0)
    assert lines.replayed(options, Random(seed)).state == before.state
    lines.torn = ""
    lines.append(StopRequested(reason="so"), 3.0)
    assert lines.replayed(options, Random(seed)).state.phase is Phase.STOPPED


def mesh(generation, from_step, restore=None):
    return Form(
        generation=generation,
        rung=Rung(layout=Layout(dp=1)),
        members=(Member(worker="w", node="a", rank=0, at_step=None),),
        restore=restore or FreshState(),
        from_step=from_step,
    )


def test_a_start_from_an_abandoned_timeline_is_noticed():
    whole = WholeRun()
    whole.form(mesh(1, 0))
    whole.form(mesh(2, 10))
    held = CheckpointState(step=10, name="step-00000010.gen-1.start-1")
    whole.form(mesh(3, 10, held))
    gone = CheckpointState(step=20, name="step-00000020.gen-1.start-1")
    with pytest.raises(InvariantError, match="abandoned timeline"):
        whole.form(mesh(4, 20, gone))


def test_two_meshes_of_one_number_are_noticed():
    whole = WholeRun()
    whole.form(mesh(1, 0))
    with pytest.raises(InvariantError, match="has the number of"):
        whole.form(mesh(1, 5))


def test_steps_that_nobody_has_trained_are_noticed():
    whole = WholeRun()
    whole.form(mesh(1, 0))
    with pytest.raises(InvariantError, match="do not add up"):
        whole.check_samples(3, ())


def test_a_kill_of_a_healthy_worker_is_noticed_and_one_of_a_frozen_one_is_not():
    simulation, _ = scene(seed=2)
    start = simulation.newest
    start.invariants.dead.clear()
    process = next(one for one in start.cluster.processes.values() if one.alive)
    order = EndWorker(worker=process.name, node=process.node, reason="so")
    with pytest.raises(InvariantError, match="is healthy"):
        start.invariants._check_deserved(order)
    process.frozen = True
    start.invariants._check_deserved(order)


def test_a_commit_is_asked_for_once_more_only_if_it_died_with_its_controller():
    """Seed 13029: the older of two under way was asked for after the other had failed."""
    simulation, _ = scene(seed=2)
    start = simulation.newest
    checkpoints = start.controller.state.checkpoints
    commit = Commit(generation=max(start.invariants.formed), step=99, files=())
    key = (commit.generation, commit.step)
    checkpoints.saves[key] = Save(waiting=set(), asked=True)
    start.invariants._check_commit(commit)
    start.invariants.after(ControllerRestarted(down_s=1.0), [commit])
    with pytest.raises(InvariantError, match="asked for before"):
        start.invariants._check_commit(commit)
    checkpoints.saves[key].asked = False
    start.invariants.after(ControllerRestarted(down_s=1.0), [])
    start.invariants._check_commit(commit)


def test_a_stop_that_leaves_what_ranks_hold_is_noticed():
    simulation, _ = scene(seed=2)
    start = simulation.newest
    state = start.controller.state
    state.phase, state.checkpoints.good = Phase.STOPPED, []
    with pytest.raises(InvariantError, match="is held by live ranks"):
        start.ends.check(state, 99.0)
    start.ends.note(StopRequested(reason="so", at_once=True))
    start.ends.check(state, 99.0)
    start.ends.check(State(), 99.0)


def test_what_is_held_by_those_whose_end_is_on_its_way_counts_for_nothing_at_a_stop():
    simulation, _ = scene(seed=2)
    start = simulation.newest
    state = start.controller.state
    state.phase, state.checkpoints.good = Phase.STOPPED, []
    for worker in state.roster.in_state(WorkerState.IDLE):
        with pytest.raises(InvariantError, match="is held by live ranks"):
            start.ends.check(state, 99.0)
        state.roster.move(worker, WorkerState.ENDING)
    start.ends.check(state, 99.0)


def test_what_could_not_be_read_counts_of_those_only_who_are_there():
    drive = Drive()
    drive.ready()
    invariants = Invariants(drive.controller)
    invariants.formed[1] = next(one for one in drive.commands if isinstance(one, Form))
    lost, member = drive.members[:2]
    drive.lose(lost)
    for worker, failed in ((lost, {}), (member, {"fresh parameters": {1}})):
        invariants._note(RestoreFailed(worker=worker, generation=1, name="", error="rotten"))
        assert invariants.failed == failed


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"meshes": 99}, "meshes"),
        ({"kills": 99}, "kills"),
        ({"journal_bytes": 10**9}, "bytes of journal"),
        ({"recoveries_s": [99.0]}, "seconds for a recovery"),
    ],
)
def test_what_costs_too_much_is_noticed(more, what):
    COSTS.check(["kill"], 1.0)
    with pytest.raises(InvariantError, match=what):
        replace(COSTS, **more).check(["kill"], 1.0)


def test_a_node_whose_disk_stays_bad_may_cost_two_meshes_after_each_cool_down():
    """10, 20 and 40 s have room in 71 s, and 80 s more do not."""
    assert [num_cool_downs(seconds, 10.0) for seconds in (9.0, 11.0, 71.0, 149.0)] == [0, 1, 3, 3]
    thrice = replace(COSTS, meshes=16, kills=36, cool_downs=3)
    thrice.check(["bad disk"], 1.0)
    for more in ({"meshes": 17}, {"kills": 37}, {"cool_downs": 2}):
        with pytest.raises(InvariantError, match="at most for 1 faults"):
            replace(thrice, **more).check(["bad disk"], 1.0)
    with pytest.raises(InvariantError, match="16 meshes, of 10 at most"):
        thrice.check(["kill"], 1.0)


def test_there_is_a_name_for_all_that_can_be_reached():
    names = everything()
    for name in ("event Tick", "command Form", "deadline of fencing", "deadline cool_s"):
        assert name in names
    assert "move from waiting to forming" in names


def test_a_range_of_seeds_is_told_by_its_ends(capsys):
    assert main(["--seeds", "3..5"]) == 0
    assert capsys.readouterr().out.startswith("3 seeds: ")


def test_the_lines_that_no_run_has_executed_can_be_told(capsys):
    assert main(["--lines", "--seeds", "1..1"]) == 0
    said = capsys.readouterr().out
    assert "control/handlers/ticking.py: " in said
    assert said.endswith("0 broke an invariant\n")


def test_an_end_for_lack_of_nodes_is_expected_only_where_there_are_too_few():
    _, outcome = scene()
    failed = replace(outcome, status="failed", reason="waiting for nodes: have 1, need 2")
    assert not draws._as_expected(failed)
    assert draws._as_expected(replace(failed, lacks_nodes=True))
