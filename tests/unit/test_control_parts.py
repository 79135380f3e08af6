"""The pure parts of the controller: lineage, recovery, budget, membership, timers, checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.orchestrator.control.memory.budget import EMPTY_TRIES, Budget
from remesh.orchestrator.control.memory.checkpoint_book import Checkpoints
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.memory.membership import Node, NodeState, WorkerState
from remesh.orchestrator.control.memory.roster import Roster
from remesh.orchestrator.control.words.events import FilesSaved
from remesh.orchestrator.control.words.phases import ENDED, MOVES, Phase, check_move
from remesh.orchestrator.control.words.records import CheckpointState, FreshState, Member, PeerState
from remesh.orchestrator.control.words.recovery import decide_restore
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.rung import Unit
from remesh.parallel.state.root_manifest import ShardFile


def lineage(*chain):
    line = Lineage()
    for generation, from_step in chain:
        line.begin(generation, from_step)
    return line


def test_a_rewind_abandons_what_lies_beyond_it():
    line = lineage((1, 0), (2, 20), (3, 30), (4, 20))
    assert line.chain == [(1, 0), (2, 20), (4, 20)]
    assert line.holds(1, 20)
    assert not line.holds(1, 21)
    assert not line.holds(3, 30)
    assert line.holds(4, 1000)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_every_step_has_one_owner_and_owners_never_go_back(starts):
    line = Lineage()
    for generation, from_step in enumerate(starts, start=1):
        line.begin(generation, from_step)
    owners = [line.owner(step) for step in range(1, 60)]
    known = [owner for owner in owners if owner is not None]
    assert known == sorted(known)
    assert owners[-1] == len(starts)
    for step, owner in enumerate(owners, start=1):
        assert owner is None or line.holds(owner, step)


def member(rank, at_step):
    return Member(worker=f"w{rank}", node="n", rank=rank, at_step=at_step)


NEWEST = CheckpointState(step=40, name="step-40")
OLDER = CheckpointState(step=20, name="step-20")


@pytest.mark.parametrize(
    ("held", "checkpoints", "avoid", "expected"),
    [
        ([None, 44, 45, 45], [NEWEST], [], PeerState(step=45, source=2)),
        ([40, None], [NEWEST], [], PeerState(step=40, source=0)),
        ([38, 39], [NEWEST], [], NEWEST),
        ([None, None], [NEWEST, OLDER], [], NEWEST),
        ([None, None], [NEWEST, OLDER], ["checkpoint step-40"], OLDER),
        ([45, None], [NEWEST], ["the peers' state at step 45"], NEWEST),
        ([None], [], [], FreshState()),
        ([None], [NEWEST], ["checkpoint step-40"], None),
        ([None], [], ["fresh parameters"], None),
    ],
)
def test_takes_the_newest_state_within_reach(held, checkpoints, avoid, expected):
    members = [member(rank, at_step) for rank, at_step in enumerate(held)]
    decision = decide_restore(members, checkpoints, avoid)
    assert (decision and decision.restore) == expected
    if decision is not None:
        assert decision.from_step == getattr(expected, "step", 0)


def test_only_progress_beyond_the_failure_resets_the_budget():
    budget = Budget()
    budget.count("killed", step=45)
    budget.progress(60, healthy_steps=20)
    assert budget.failures == 1
    budget.progress(65, healthy_steps=20)
    assert budget.failures == 0
    assert budget.total == 1


def test_a_node_that_comes_back_after_progress_takes_nothing_back():
    budget = Budget()
    budget.nodes["b"] = None
    budget.count("node b was lost", step=45)
    budget.progress(65, healthy_steps=20)
    budget.take_back("b")
    assert (budget.failures, budget.false_alarms) == (0, 0)


def test_generations_that_break_before_a_step_count_every_third_time():
    budget = Budget()
    for _ in range(2 * EMPTY_TRIES):
        budget.count_empty_try("forming timed out", step=0)
    assert budget.failures == 2
    assert "forming timed out" in budget.cause


def roster(*nodes, tp=1):
    found = Roster()
    found.count_units([Unit(workers=tp)])
    for name, slots in nodes:
        found.add_node(Node(name=name, slots=slots, domain="", head=name == "head"))
    return found


def places(found, wanted, spares=0):
    """Where workers are started for the largest units that are counted."""
    return found.places(wanted, Unit(workers=max(found.counted)), spares)


def start_all(found, wanted):
    for node in places(found, wanted):
        found.move(found.start(node), WorkerState.IDLE)


def test_workers_are_spread_evenly_and_never_beyond_the_slots():
    found = roster(("b", 3), ("head", 3))
    assert places(found, 5) == ["head", "b", "head", "b", "head"]
    start_all(found, 5)
    assert places(found, 5) == []
    assert len(places(found, 99)) == 1


def test_a_worker_that_is_being_ended_still_fills_its_slot():
    found = roster(("head", 2))
    start_all(found, 2)
    found.move(found.workers["worker-0"], WorkerState.ENDING)
    assert places(found, 2) == []
    found.remove(found.workers["worker-0"])
    assert places(found, 2) == ["head"]


def test_in_the_place_of_one_that_is_being_ended_another_starts_where_there_is_room():
    found = roster(("head", 4), ("b", 4))
    start_all(found, 2)
    found.move(found.workers["worker-0"], WorkerState.ENDING)
    assert len(places(found, 2)) == 1
    found.turn_node(found.nodes[found.workers["worker-0"].node], NodeState.LEAVING)
    assert len(places(found, 2)) == 1, "it counts no more on a node that leaves"
    units = roster(("head", 2), ("b", 2), tp=2)
    start_all(units, 2)
    units.move(units.workers["worker-0"], WorkerState.ENDING)
    assert places(units, 2) == [], "one for a larger unit waits for its slot"


def test_workers_complete_a_group_before_they_begin_another():
    found = roster(("b", 4), ("c", 4), ("head", 2), tp=4)
    assert places(found, 8) == ["b"] * 4 + ["c"] * 4
    start_all(found, 4)
    assert places(found, 4, spares=1) == ["c"]
    for name in ("worker-0", "worker-1"):
        found.remove(found.workers[name])
    found.move(found.start("c"), WorkerState.IDLE)
    found.move(found.start("c"), WorkerState.IDLE)
    assert places(found, 4) == ["b", "b"]


def test_a_worker_where_no_group_has_room_is_no_member():
    found = roster(("head", 2), tp=4)
    start_all(found, 4)
    assert found.counted[4].filled == 0
    found.add_node(Node(name="b", slots=4, domain="", head=False))
    assert places(found, 4) == ["b"] * 4


def test_a_group_waits_for_the_slot_of_the_one_that_is_being_ended():
    found = roster(("a", 2), ("b", 2), tp=2)
    start_all(found, 2)
    found.move(found.workers["worker-0"], WorkerState.ENDING)
    assert places(found, 2) == []
    found.remove(found.workers["worker-0"])
    assert places(found, 2) == ["a"]


def test_holders_of_state_come_first_and_spares_of_a_hurt_node_last():
    found = roster(("b", 3), ("head", 3))
    start_all(found, 6)
    held = {"worker-0": 7, "worker-1": 7}
    found.nodes["head"].hurt_in = 3
    idle = found.in_state(WorkerState.IDLE)
    ordered = [worker.name for worker in found.in_order(idle, held, (), 3)]
    assert ordered[:2] == ["worker-0", "worker-1"]
    assert set(ordered[2:4]) == {"worker-3", "worker-5"}
    assert found.in_order(idle, held, {"worker-4"}, 3)[0].name == "worker-4"


@given(st.floats(0.05, 60.0), st.floats(0.0, 600.0), st.integers(1, 20_000))
def test_the_layers_of_deadlines_are_in_order_for_every_patience(patience_s, step_s, nodes):
    timers = Timers(patience_s=patience_s)
    assert timers.silent_s < timers.node_lost_s(1) < timers.form_s < timers.lease_s
    assert timers.lease_s < timers.start_s() < timers.restore_s
    assert timers.start_s() < timers.start_s(1) < timers.start_s(2)
    assert timers.start_s(99) == timers.start_s(100)
    assert timers.fence_s(step_s) < timers.drain_s(step_s) < timers.stall_s(step_s)
    assert timers.fence_s(None) > timers.fence_s(0.0)
    assert nodes / timers.beat_s(nodes) <= max(1000.0, 4 * nodes / patience_s) + 1e-6


@given(st.floats(0.05, 60.0), st.integers(1, 20_000))
def test_a_node_that_beats_as_told_is_never_silent_with_however_many_others(patience_s, nodes):
    """control A1: a beat may be lost, or late by as much as its interval."""
    timers = Timers(patience_s=patience_s)
    beat_s, silent_s = timers.beat_s(nodes), timers.node_silent_s(nodes)
    lost_s = timers.node_lost_s(nodes)
    assert 2 * beat_s <= silent_s
    assert patience_s + 3 * beat_s <= lost_s
    assert silent_s < lost_s <= timers.adopt_s(nodes) < timers.node_lease_s(nodes)
    assert timers.node_silent_s(1) == patience_s, "few nodes are found out within one patience"


def test_the_pause_between_two_empty_tries_grows_and_is_bounded():
    timers = Timers(patience_s=0.5)
    pauses = [timers.pause_s(tries) for tries in range(1, 20)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[1] == timers.patience_s
    assert timers.lease_s < pauses[-1] == pauses[-2] < timers.start_s()


def test_a_state_is_kept_under_the_newest_generation_that_stands_on_it():
    line = lineage((1, 0), (2, 20), (3, 20), (5, 40))
    assert [line.keeper(step) for step in (0, 19, 20, 39, 40, 50)] == [1, 1, 3, 3, 5, 5]
    assert all(line.holds(line.keeper(step), step) for step in range(60))


def test_moves_follow_the_table_and_nothing_leaves_the_end():
    assert set(MOVES) == set(Phase)
    assert all(not MOVES[phase] for phase in ENDED)
    with pytest.raises(AssertionError, match="no move from finished to running"):
        check_move(Phase.FINISHED, Phase.RUNNING)


def test_every_phase_can_be_reached_and_left():
    reached = set().union(*MOVES.values())
    assert reached == set(Phase)
    assert all(MOVES[phase] for phase in set(Phase) - ENDED)


def files(worker, generation, step):
    part = ShardFile(name=f"{worker}.safetensors", size_bytes=1, digest="0")
    return FilesSaved(worker=worker, generation=generation, step=step, files=(part,))


def test_only_complete_sets_are_handed_out_once_and_with_their_records():
    checkpoints = Checkpoints()
    checkpoints.begin(1, frozenset({"a", "b"}), 0)
    checkpoints.add_files(files("a", 1, 20))
    checkpoints.add_files(files("a", 1, 20))
    checkpoints.add_files(files("stranger", 1, 20))
    assert checkpoints.complete(1, 20) is None
    checkpoints.add_files(files("b", 1, 20))
    assert checkpoints.complete(1, 19) is None
    step, save = checkpoints.complete(1, 20)
    assert step == 20
    assert [file.name for file in save.files] == ["a.safetensors", "b.safetensors"]
    assert checkpoints.complete(1, 20) is None


def test_files_of_the_forerunner_still_count_those_of_an_abandoned_step_do_not():
    checkpoints = Checkpoints()
    checkpoints.begin(1, frozenset({"a"}), 0)
    checkpoints.add_files(files("a", 1, 40))
    checkpoints.begin(2, frozenset({"a", "b"}), 20)
    assert checkpoints.complete(1, 40) is None
    checkpoints.add_files(files("a", 1, 20))
    assert checkpoints.complete(1, 20)[0] == 20
