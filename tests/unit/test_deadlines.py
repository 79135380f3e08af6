"""The moments that a controller waits for: in order whatever befell them, and put off together."""

from random import Random

import pytest
from control_drive import of, running

from remesh.orchestrator.control.memory.deadlines import Deadlines, Due
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase


def test_the_earliest_of_all_is_known():
    deadlines = Deadlines(phase_s=9.0)
    assert deadlines.earliest_s() == 9.0
    deadlines.starting["a"] = 3.0
    deadlines.starting["b"] = 4.0
    assert deadlines.earliest_s() == 3.0
    assert deadlines.starting.expired(3.5) == ["a"]
    deadlines.forget("a")
    assert deadlines.earliest_s() == 4.0
    deadlines.commit_s = 2.0
    assert deadlines.earliest_s() == 2.0
    deadlines.clear()
    assert deadlines.earliest_s() is None


def test_a_standstill_puts_off_all_that_is_waited_for_in_any_phase():
    deadlines = Deadlines(gather_s=1.0, judge_s=2.0)
    deadlines.starting["a"], deadlines.ending["b"] = 3.0, 4.0
    deadlines.excuse_others(0.5)
    assert (deadlines.gather_s, deadlines.judge_s) == (1.5, 2.5)
    assert (deadlines.starting.earliest_s(), deadlines.ending.earliest_s()) == (3.5, 4.5)


def test_names_come_in_the_order_of_their_moments_whatever_was_set_put_off_or_forgotten():
    chance, due, known = Random(1), Due(), {}
    for moment in range(2000):
        name = f"worker-{chance.randrange(40)}"
        match chance.randrange(5):
            case 0:
                due.forget(name)
                known.pop(name, None)
            case 1 if moment % 7 == 0:
                due.put_off(3.0, moment + 5.0)
                known = {name: max(at_s + 3.0, moment + 5.0) for name, at_s in known.items()}
            case _:
                due[name] = known[name] = moment + chance.choice([1.0, 60.0, 0.5])
        assert due.earliest_s() == min(known.values(), default=None)
        come = due.expired(float(moment))
        assert sorted(come) == sorted(n for n, at_s in known.items() if at_s <= moment)
        assert [known[name] for name in come] == sorted(known[name] for name in come)


def test_after_a_restart_a_frozen_rank_is_given_up_as_fast_as_ever():
    """The ends that were awaited before it have more time, those that come later have not."""
    drive = running(5)
    drive.do(ev.WorkerFrozen(worker="worker-3", silent_s=0.6))
    drive.do(ev.ControllerRestarted(down_s=3.0), after_s=3.0)
    drive.do(ev.WorkerFrozen(worker="worker-2", silent_s=0.6))
    soon_s = drive.now_s + drive.controller.options.timers.end_s
    assert drive.state.deadlines.ending.earliest_s() == soon_s
    drive.do(ev.Tick(), after_s=soon_s - drive.now_s)
    assert "worker-2" not in drive.state.roster.workers
    assert "worker-3" in drive.state.roster.workers


def test_a_standstill_excuses_all_who_were_waited_for_and_asks_nobody_again():
    drive = running(5)
    drive.do(ev.WorkerFrozen(worker="worker-3", silent_s=0.6))
    before = len(drive.commands)
    drive.do(ev.StoodStill(for_s=22.0), after_s=22.0)
    drive.do(ev.Tick())
    assert drive.state.phase is Phase.FENCING
    assert drive.commands[before:] == of(cmd.Announce, drive.commands[before:])
    assert (
        drive.commands[-1].text
        == "the controller stood still for 22.0 s: nobody was late meanwhile"
    )
    assert set(drive.state.roster.workers) == {f"worker-{n}" for n in range(4)}


@pytest.mark.parametrize(("due_in_s", "said"), [(0.3, 1), (0.9, 0)])
def test_a_standstill_is_told_only_if_somebody_would_have_been_late(due_in_s, said):
    """On a busy host it came every few seconds, and nothing followed from it."""
    drive = running(5)
    drive.do(ev.WorkerFrozen(worker="worker-3", silent_s=0.6))
    due_s = drive.state.deadlines.earliest_s()
    drive.now_s = due_s - due_in_s
    told = drive.do(ev.StoodStill(for_s=0.6), after_s=0.6)
    assert len(of(cmd.Announce, told)) == said


def starved(drive, seconds):
    """The host of the controller runs for 0.2 s and stands still for 0.3 s, by turns."""
    until_s = drive.now_s + seconds
    while drive.now_s < until_s:
        drive.do(ev.StoodStill(for_s=0.3), after_s=0.5)
        drive.do(ev.Tick())


def hung_at_a_fence():
    drive = running(5)
    drive.lose("worker-3")
    return drive


def hung_in_a_mesh():
    drive = hung_at_a_fence()
    drive.park(5)
    return drive


@pytest.mark.parametrize("hung", [hung_at_a_fence, hung_in_a_mesh])
def test_many_short_standstills_do_not_hide_who_hangs(hung):
    """Each gave the phase all its time again: it never ended on a starved host."""
    drive = hung()
    phase, limit_s = drive.state.phase, drive.state.deadlines.phase_s - drive.now_s
    starved(drive, 2 * limit_s + 1.0)
    if phase is Phase.FENCING:
        assert len(of(cmd.EndWorker, drive.commands)) == 3
    else:
        assert (phase, drive.state.phase) == (Phase.FORMING, Phase.FENCING)


def test_a_frozen_rank_counts_as_lost_however_often_the_controller_stands_still():
    drive = running(5)
    drive.do(ev.WorkerFrozen(worker="worker-3", silent_s=0.6))
    starved(drive, 4.0)
    assert "worker-3" not in drive.state.roster.workers


@pytest.mark.parametrize("before", [0, 3])
def test_one_long_standstill_excuses_all_of_it_whatever_short_ones_came_before(before):
    drive = hung_at_a_fence()
    for _ in range(before):
        drive.do(ev.StoodStill(for_s=0.3), after_s=0.3)
    left_s = drive.state.deadlines.phase_s - drive.now_s
    drive.do(ev.StoodStill(for_s=60.0), after_s=60.0)
    assert drive.state.deadlines.phase_s - drive.now_s == pytest.approx(left_s)
    assert left_s > 1.0


def test_a_standstill_does_not_lengthen_a_notice():
    drive = running(5)
    drive.do(ev.NodeDraining(node="head", cause="preempted", deadline_s=drive.now_s + 3.0))
    until_s = drive.state.notice_s
    drive.do(ev.StoodStill(for_s=2.0), after_s=2.0)
    assert drive.state.deadlines.phase_s == until_s


def test_a_fence_whose_limit_is_over_has_one_again_after_a_restart():
    """What was asked for anew is waited for anew: a vault that is mute by now, too."""
    drive = running(5)
    drive.do(ev.VaultUp(node="head", address="10.0.0.1:7"))
    drive.lose("worker-3")
    drive.do(ev.Tick(), after_s=drive.controller.next_deadline_s() - drive.now_s)
    drive.do(ev.VaultTold(node="head", generation=1, slots=()))  # late, but it lives
    drive.do(ev.ControllerRestarted(down_s=2.0), after_s=2.0)
    for name in ("worker-0", "worker-1", "worker-2"):
        drive.do(ev.WorkerLost(worker=name, cause="ended"))
    assert drive.state.phase is Phase.FENCING
    assert drive.controller.next_deadline_s() is not None
    drive.do(ev.Tick(), after_s=drive.controller.next_deadline_s() - drive.now_s)
    assert drive.state.phase is Phase.WAITING
