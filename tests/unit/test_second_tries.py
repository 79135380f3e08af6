"""An error gets a second try on another node, a failure that repeats one from an older state:
control A15, B137.
"""

import pytest
from control_drive import of, running
from control_values import records

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState, FreshState, PeerState

NODES = (("head", 2), ("b", 2), ("c", 2))


def erred(drive, node, error="block 7 of shard-3 cannot be read: EIO", **more):
    worker = next(m.worker for m in drive.state.current.members if m.node == node)
    values = {"error": error, "user_error": True, **more}
    drive.do(ev.WorkerErred(worker=worker, generation=drive.state.last_generation, **values))
    return worker


def without(drive, worker, at_step):
    """The process that erred has ended, the others have left the mesh."""
    drive.lose(worker)
    drive.park(at_step, held_in=1)


def rest_saves(drive, at_step, *, held_in=None):
    """Those who are left leave what they hold on storage. Returns how the run ended."""
    drained = drive.state.phase == "draining"
    drive.park(at_step, drained=drained, held_in=held_in)
    saved = [(c.generation, c.workers) for c in of(cmd.SaveHeld, drive.commands)]
    generation, workers = saved[-1] if saved else (drive.state.last_generation, drive.members)
    drive.save(at_step, workers=workers, generation=generation)
    name = f"step-{at_step}"
    drive.do(ev.CheckpointCommitted(generation=generation, step=at_step, name=name))
    (end,) = of(cmd.End, drive.commands)
    return end


def nodes_in(drive):
    return sorted({m.node for m in drive.state.current.members})


def test_an_error_gets_a_second_try_without_its_node():
    """control A15: an EIO of one disk ended the run."""
    drive = running(10, nodes=NODES, max_dp=6)
    worker = erred(drive, "b")
    said = [announced.text for announced in of(cmd.Announce, drive.commands)]
    assert f"doing without node b: {worker} failed there" in said
    without(drive, worker, 10)
    assert drive.state.phase == "forming"
    assert nodes_in(drive) == ["c", "head"]
    assert drive.state.current.restore == PeerState(step=10, source=0)
    drive.train(12)
    assert drive.state.budget.total == 1


@pytest.mark.parametrize(
    "again",
    [{"error": "another file: EIO"}, {"steps": 12}],
    ids=["at the same step", "in the same words"],
)
def test_the_same_error_on_another_node_ends_the_run_with_its_cause(again):
    drive = running(10, nodes=NODES, max_dp=6)
    without(drive, erred(drive, "b"), 10)
    drive.train(again.pop("steps", None))
    drive.lose(erred(drive, "c", **again))
    end = rest_saves(drive, drive.state.step, held_in=1 if "error" in again else None)
    assert (end.status, end.user_error) == ("failed", True)
    assert "EIO" in end.reason
    assert end.reason.endswith(f" (on node b too); saved at step {drive.state.step}")


def test_the_others_save_what_they_hold_when_an_error_ends_the_run():
    """It threw away all steps since the newest checkpoint, which the other ranks held."""
    drive = running(10, nodes=NODES, max_dp=6)
    worker = erred(drive, "c", error="tp=8 does not divide 28", certain=True)
    assert of(cmd.End, drive.commands) == []
    drive.lose(worker)
    assert rest_saves(drive, 10).reason == "tp=8 does not divide 28; saved at step 10"
    assert of(cmd.Form, drive.commands)[1:] == []


def test_an_error_before_the_first_step_ends_the_run_at_once():
    drive = running(None, nodes=NODES, max_dp=6)
    erred(drive, "c", error="tp=8 does not divide 28", certain=True)
    (end,) = of(cmd.End, drive.commands)
    assert end.reason == "tp=8 does not divide 28"


def test_ranks_of_one_node_that_err_together_are_one_error():
    drive = running(10, nodes=NODES, max_dp=6)
    first = erred(drive, "b")
    second = next(name for name in drive.members if name != first and on_node(drive, name, "b"))
    values = {"generation": 1, "error": "block 7 of shard-3 cannot be read: EIO"}
    drive.do(ev.WorkerErred(worker=second, user_error=True, **values))
    assert drive.state.phase == "fencing"
    assert drive.state.budget.total == 1


def on_node(drive, worker, node):
    return drive.state.roster.workers[worker].node == node


def test_another_error_at_another_step_has_its_own_second_try():
    drive = running(10, nodes=(*NODES, ("d", 2)), max_dp=8)
    without(drive, erred(drive, "b"), 10)
    drive.train(30)
    drive.park(None)
    erred(drive, "c", error="no space left")
    assert drive.state.phase != "failed"


@pytest.mark.parametrize("nodes", [(("head", 2),), NODES], ids=["nowhere else", "it is certain"])
def test_where_a_second_try_is_in_vain_the_run_ends_at_once(nodes):
    drive = running(10, nodes=nodes, max_dp=6)
    erred(drive, "head", error="tp=8 does not divide 28", certain=len(nodes) > 1)
    end = rest_saves(drive, 10)
    assert end.reason == "tp=8 does not divide 28; saved at step 10"
    assert of(cmd.Form, drive.commands)[1:] == []


def test_an_error_while_it_starts_costs_its_node_and_no_more():
    drive = running(None, nodes=(("head", 1), ("b", 1)), max_dp=2)
    drive.do(ev.NodeJoined(node="c", slots=1))
    drive.do(ev.WorkerErred(worker="worker-1", generation=0, error="EIO", user_error=True))
    assert drive.state.phase == "fencing"
    assert drive.state.roster.nodes["b"].state == "leaving"


def raises(drive, last=12):
    """All train to step `last`; then one process raises, in the step after it."""
    drive.all(ev.WorkerFormed, form_s=0.01)
    drive.all(ev.WorkerRestored, at_step=drive.state.current.from_step, restore_s=0.01)
    if drive.state.step < last:
        drive.steps(last)
    cause = "FloatingPointError: the loss of step 13 is not finite"
    victim = drive.members[-1]
    drive.do(ev.WorkerLost(worker=victim, cause=cause, traceback="Traceback ..."))
    generation = drive.state.last_generation
    if drive.state.phase == "fencing":
        drive.park(last, held_in=generation, generation=generation)
    while drive.state.phase == "waiting":
        drive.ready()
        if drive.state.phase == "waiting":
            drive.tick()


def saved_at(step, size, **options):
    nodes = tuple((f"n{number}", 1) for number in range(size))
    drive = running(step, nodes=nodes, max_dp=size, **options)
    drive.save(step)
    drive.commit(step)
    return drive


def test_a_failure_that_repeats_is_tried_from_an_older_state_once_and_names_its_step():
    """B137: step 13 fails each time; never a third time from the same state."""
    drive = saved_at(10, 3)
    starts = []
    for _ in range(9):
        if drive.state.phase == "failed":
            break
        starts.append(drive.state.current.restore)
        raises(drive)
    assert isinstance(starts[-1], CheckpointState)
    assert len(starts) == 3
    (end,) = of(cmd.End, drive.commands)
    assert "step 13 fails in the same way each time, from an older state too" in end.reason


def test_what_is_held_is_saved_when_a_failure_repeats():
    drive = saved_at(10, 6)
    for _ in range(9):
        if drive.state.parting is None:
            raises(drive)
    (held,) = of(cmd.SaveHeld, drive.commands)
    drive.save(12, workers=held.workers, generation=held.generation)
    drive.do(ev.CheckpointCommitted(generation=held.generation, step=12, name="step-12"))
    (end,) = of(cmd.End, drive.commands)
    assert end.reason.startswith("step 13 fails in the same way each time")
    assert end.reason.endswith("; saved at step 12")


def test_the_checkpoint_that_leads_there_twice_is_not_taken_a_third_time():
    older, newer = (CheckpointState(step=step, name=f"step-{step}") for step in (5, 10))
    drive = running(None, nodes=(("head", 1),), max_dp=1, resume=newer, fallbacks=(older,))
    taken = []
    for _ in range(9):
        if drive.state.phase == "failed":
            break
        taken.append(drive.state.current.restore)
        raises(drive)
    assert taken == [newer, newer, older]


def test_who_is_killed_each_time_at_the_same_step_is_no_repetition():
    drive = saved_at(10, 6, max_failures=8)
    for _ in range(4):
        drive.all(ev.WorkerFormed, form_s=0.01)
        drive.all(ev.WorkerRestored, at_step=drive.state.current.from_step, restore_s=0.01)
        generation = drive.state.last_generation
        drive.lose(drive.members[-1])
        drive.park(drive.state.step, held_in=generation, generation=generation)
    assert drive.state.phase != "failed"
    assert isinstance(drive.state.current.restore, PeerState)


def skips(drive, first, last):
    done = records(first, last, drive.now_s, applied=False)
    drive.all(ev.StepsDone, workers=drive.members[:1], records=done)


def test_steps_that_are_not_finite_after_a_copy_are_tried_from_an_older_state_once():
    """B137: a bad copy of the state gives NaN 3 steps after it was loaded, every time."""
    older, newer = (CheckpointState(step=step, name=f"step-{step}") for step in (5, 10))
    one = {"nodes": (("head", 1),), "max_dp": 1, "max_skipped_steps": 3}
    drive = running(12, resume=newer, fallbacks=(older,), **one)
    skips(drive, 13, 15)
    assert drive.state.phase == "fencing"
    assert drive.state.budget.total == 1
    drive.park(15, held_in=1)
    assert drive.state.current.restore == older
    drive.train(12)
    skips(drive, 13, 15)
    end = rest_saves(drive, 16)
    assert end.reason.startswith("steps 13 to 15 updated nothing")


def test_where_no_older_state_is_left_the_run_ends_by_that_name():
    only = CheckpointState(step=10, name="step-10")
    one = {"nodes": (("head", 1),), "max_dp": 1, "max_skipped_steps": 3}
    drive = running(12, resume=only, **one)
    skips(drive, 13, 15)
    drive.park(15, held_in=1)
    (end,) = of(cmd.End, drive.commands)
    assert end.status == "failed"
    failed = "checkpoint step-10, the peers' state at step 15"
    assert end.reason == f"no state is left to train from; failed twice: {failed}"


def test_steps_that_are_not_finite_from_the_beginning_end_the_run_at_once():
    drive = running(3, nodes=(("head", 1),), max_dp=1, max_skipped_steps=3)
    assert isinstance(drive.state.current.restore, FreshState)
    skips(drive, 4, 6)
    assert rest_saves(drive, 7).status == "failed"


def test_what_was_saved_of_a_bad_copy_is_no_older_state():
    older, newer = (CheckpointState(step=step, name=f"step-{step}") for step in (5, 10))
    one = {"nodes": (("head", 1),), "max_dp": 1, "max_skipped_steps": 3}
    drive = running(12, resume=newer, fallbacks=(older,), **one)
    drive.save(12)
    drive.commit(12)
    skips(drive, 13, 15)
    drive.park(15, held_in=1)
    assert drive.state.current.restore == older


def test_steps_that_are_not_finite_long_after_a_copy_are_not_its_fault():
    newest = CheckpointState(step=10, name="step-10")
    one = {"nodes": (("head", 1),), "max_dp": 1, "max_skipped_steps": 3, "healthy_steps": 5}
    drive = running(20, resume=newest, **one)
    skips(drive, 21, 23)
    assert rest_saves(drive, 24).status == "failed"
