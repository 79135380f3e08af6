"""A recovery is counted from the fault itself, and not from when somebody noticed (speed 9a)."""

import pytest
from control_drive import running

from remesh.orchestrator.control.memory.generations import report
from remesh.orchestrator.control.words import events as ev

STANDING = {"step": 10, "phase": "forward", "silent_s": 3.0}


def recovered(drive):
    """The report of the generation that follows, after one step of it."""
    drive.park(10, held_in=drive.state.last_generation)
    drive.ready()
    drive.train(11)
    return report(drive.state.current)


def test_a_freeze_counts_from_the_last_sign_of_life():
    drive = running(10)
    frozen = drive.members[0]
    drive.do(ev.WorkerFrozen(worker=frozen, silent_s=0.6), after_s=5.0)
    seen_s = drive.now_s
    drive.do(ev.WorkerLost(worker=frozen, cause="killed", died_at_s=drive.now_s))
    life = recovered(drive)
    assert life.died_at_s == pytest.approx(seen_s - 0.6)
    assert life.recovery_parts.detect == pytest.approx(0.6)
    assert life.recovery_s >= 0.6


def test_a_death_counts_from_the_moment_at_which_it_is_known_to_have_been():
    drive = running(10)
    drive.now_s += 5.0
    seen_s = drive.now_s + 0.01
    lost = drive.members[0]
    drive.do(ev.WorkerLost(worker=lost, cause="killed", died_at_s=seen_s - 0.2))
    assert recovered(drive).died_at_s == pytest.approx(seen_s - 0.2)


def test_a_rank_that_hangs_counts_from_where_it_stopped():
    drive = running(10)
    drive.now_s += 5.0
    seen_s = drive.now_s + 0.01
    for worker in drive.members:
        operation = 6 if worker == "worker-2" else 7
        drive.do(ev.WorkerStuck(worker=worker, generation=1, operation=operation, **STANDING))
    drive.tick()
    drive.lose("worker-2")
    life = recovered(drive)
    assert life.died_at_s == pytest.approx(seen_s - 3.0)
    assert life.recovery_parts.detect >= 3.0


def test_a_mesh_that_stands_still_as_a_whole_counts_from_where_it_stopped():
    drive = running(10)
    drive.now_s += 5.0
    seen_s = drive.now_s + 0.01
    for worker in drive.members:
        drive.do(ev.WorkerStuck(worker=worker, generation=1, operation=7, **STANDING))
    drive.tick()
    life = recovered(drive)
    assert life.died_at_s == pytest.approx(seen_s - 3.0)


def test_lost_steps_count_until_they_are_trained_again():
    """speed 3: a kill costs 0.4 s and what was lost with it 3.5."""
    drive = running(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(14)
    drive.do(*(ev.WorkerLost(worker=name, cause="killed") for name in drive.members))
    drive.ready()
    lives = []
    drive.train()
    for last in range(11, 17):
        drive.now_s += 0.5
        drive.steps(last)
        lives.append(report(drive.state.current))
    assert [life.lost_steps for life in lives] == [4] * 6
    retrained = [life.recovery_parts.retrain for life in lives]
    assert retrained == pytest.approx([0.0, 0.51, 1.02, 1.53, 2.04, 2.04], abs=0.1)
    first_s = lives[0].recovery_s
    assert [life.recovery_s for life in lives] == pytest.approx([first_s + s for s in retrained])


def test_a_silent_node_counts_from_its_last_beat():
    drive = running(10)
    drive.do(ev.GroupBroken(worker=drive.members[0], generation=1, error="reset"), after_s=5.0)
    drive.park(10, workers=["worker-0", "worker-2"])
    drive.do(ev.NodeSilent(node="b", silent_s=2.0))
    seen_s = drive.now_s
    drive.train(11)
    life = report(drive.state.current)
    assert life.died_at_s == pytest.approx(seen_s - 2.0)


def test_a_node_that_only_missed_its_beats_counts_from_the_last_step():
    """The run trained meanwhile."""
    drive = running(10)
    last_s = drive.state.last.ended_s
    drive.do(ev.NodeLost(node="b", cause="silent", died_at_s=drive.now_s - 90.0), after_s=1.0)
    assert recovered(drive).died_at_s == pytest.approx(last_s)


def test_one_that_freezes_after_it_has_parked_with_its_part_of_the_state_is_a_fault():
    """Seed 3832: seven steps were lost that nobody else held, and nothing had failed."""
    drive = running(10, max_dp=6)
    drive.do(ev.NodeJoined(node="c", slots=2))
    drive.ready()
    assert drive.state.phase == "draining"
    first = drive.members[0]
    drive.all(ev.WorkerParked, workers=[first], at_step=11, drained=True, held_in=1)
    drive.do(ev.WorkerFrozen(worker=first, silent_s=0.6))
    assert drive.state.phase == "fencing"
    assert "gave no sign of life" in drive.state.reason
