"""The counters of a run: each thing once, nothing backwards, the same again from the journal."""

import copy

import pytest
from control_values import records
from tallied_drive import TalliedDrive, dealt_s, flat, tallied, through_everything

from remesh.orchestrator.accounts.durations import histogram
from remesh.orchestrator.accounts.goodput import REASONS
from remesh.orchestrator.accounts.tally import Frontier, Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState


def test_tokens_follow_the_trained_position_and_lost_steps_are_counted_apart():
    drive = tallied(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(15)
    assert drive.tally.tokens == 150
    drive.lose(drive.members[0])
    drive.park(None, drained=False)
    assert drive.state.step == 10
    assert (drive.tally.tokens, drive.tally.lost_steps) == (150, 5)
    drive.train(13)
    assert (drive.tally.tokens, drive.tally.steps) == (150, 15)
    drive.steps(18)
    assert (drive.tally.tokens, drive.tally.steps, drive.tally.lost_steps) == (180, 18, 5)
    assert sum(drive.tally.step_s.counts) == 15 + 8


def test_a_loss_without_a_lost_step_counts_as_one_failure_and_one_recovery():
    drive = tallied(10)
    drive.lose(drive.members[0])
    drive.park(12, records=records(11, 12, drive.now_s))
    drive.train(13)
    tally = drive.tally
    assert {cause: n for cause, n in tally.failures.items() if n} == {"worker_died": 1}
    assert (tally.recoveries, tally.lost_steps, tally.steps) == (1, 0, 13)
    life = view_of(drive.controller).generations[-1]
    assert sum(tally.recovery_s.values()) == pytest.approx(life.recovery_s)


def test_the_moment_of_a_death_that_is_learned_late_lengthens_its_detection():
    drive = tallied(10)
    drive.do(ev.GroupBroken(worker=drive.members[1], generation=1, error="reset"))
    lost = drive.members[0]
    drive.lose(lost)
    drive.park(10)
    drive.train(11)
    before = copy.deepcopy(drive.tally.recovery_s)
    drive.do(ev.WorkerLost(worker=lost, cause="killed", died_at_s=drive.now_s - 1.0))
    life = view_of(drive.controller).generations[-1]
    assert sum(drive.tally.recovery_s.values()) == pytest.approx(life.recovery_s)
    assert drive.tally.recovery_s["detect"] > before["detect"]
    assert drive.tally.recoveries == 1


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (lambda d: ev.WorkerLost(worker=d.members[0], cause="killed"), "worker_died"),
        (lambda d: ev.WorkerFrozen(worker=d.members[0], silent_s=0.6), "worker_frozen"),
        (lambda _: ev.NodeLost(node="b", cause="killed"), "node_lost"),
        (
            lambda d: ev.WorkerErred(
                worker=d.members[0], generation=1, error="bad data", user_error=True
            ),
            "job_error",
        ),
    ],
)
def test_a_failure_has_the_cause_by_which_it_was_first_known(event, cause):
    drive = tallied(10)
    event = event(drive)
    drive.do(event)
    drive.do(event)
    assert {name: n for name, n in drive.tally.failures.items() if n} == {cause: 1}


def test_every_second_from_the_start_is_dealt_out_once():
    drive = through_everything()
    goodput = drive.tally.goodput
    started_s = 0.03
    assert dealt_s(drive.tally) == pytest.approx(drive.now_s - started_s)
    assert sum(goodput.phase_s.values()) == pytest.approx(drive.now_s - started_s)
    assert goodput.productive_s == pytest.approx(20 * 0.2, rel=0.02)
    assert goodput.unproductive_s["retraining"] == pytest.approx(3 * 0.2, rel=0.02)
    spent = {reason for reason, s in goodput.unproductive_s.items() if s > 0.001}
    assert spent == set(REASONS) - {"waiting"}


def test_time_without_enough_workers_is_waiting():
    drive = tallied(10, nodes=(("head", 1),), max_dp=1)
    drive.lose(drive.members[0])
    drive.do(ev.Tick(), after_s=7.0)
    assert drive.tally.goodput.unproductive_s["waiting"] == pytest.approx(7.0)
    assert drive.tally.goodput.phase_s["waiting"] > 7.0


def test_no_time_is_dealt_out_after_the_end():
    drive = through_everything()
    before = flat(drive.tally)
    drive.do(ev.Tick(), after_s=100.0)
    assert flat(drive.tally) == before


def test_clocks_that_disagree_never_take_time_back():
    drive = tallied(1)
    for ended_s in (1e9, -1e9, drive.now_s):
        before = flat(drive.tally)
        done = records(drive.state.step + 1, drive.state.step + 1, ended_s)
        drive.all(ev.StepsDone, workers=drive.members[:1], records=done)
        assert all(new >= old for new, old in zip(flat(drive.tally), before, strict=True))
    assert dealt_s(drive.tally) <= drive.now_s


def test_no_counter_goes_back_and_a_replay_counts_the_same():
    drive = through_everything()
    machine, tally, before = Controller(drive.controller.options), Tally(), flat(Tally())
    for event, now_s in journal.read(drive.lines):
        machine.handle(event, now_s)
        tally.note(event, now_s, machine.state)
        now = flat(tally)
        assert all(new >= old for new, old in zip(now, before, strict=True))
        before = now
    assert tally == drive.tally


def test_doubled_and_late_words_are_not_counted():
    drive = tallied(10)
    drive.save(10)
    drive.commit(10)
    drive.lose(drive.members[0])
    drive.park(10)
    drive.train(12)
    before = flat(drive.tally)
    machine, tally, seen = Controller(drive.controller.options), Tally(), []
    for event, now_s in journal.read(drive.lines):
        seen.append(event)
        for again in (event, *seen[-6:-1]):
            if not (isinstance(again, ev.RunStarted) and again is not event):
                machine.handle(again, now_s)
                tally.note(again, now_s, machine.state)
                if isinstance(event, ev.RunStarted):
                    break
    assert flat(tally) == pytest.approx(before)


def test_a_run_that_is_taken_up_counts_on_and_owns_up_to_what_it_lost():
    drive = tallied(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(14)
    before = flat(drive.tally)
    later = TalliedDrive(tally=drive.tally, resume=CheckpointState(step=10, name="step-10.gen-1"))
    later.ready()
    later.train(16)
    tally = later.tally
    assert (tally.starts, tally.steps, tally.tokens, tally.lost_steps) == (2, 16, 160, 4)
    assert all(new >= old for new, old in zip(flat(tally), before, strict=True))
    assert tally.saves.saved_step == 10


def test_a_checkpoint_takes_from_the_end_of_its_step_to_its_commit():
    drive = tallied(10)
    drive.now_s += 3.0
    drive.save(10)
    drive.commit(10)
    drive.commit(10)
    saves = drive.tally.saves
    assert sum(saves.took_s.counts) == 1
    assert saves.took_s.sum_s == pytest.approx(3.0 + 0.02, abs=0.01)
    assert saves.saved_at_s == pytest.approx(drive.now_s - 0.01)


def test_a_checkpoint_that_several_ranks_cannot_write_is_one_failed_one():
    drive = tallied(10)
    drive.all(ev.SaveFailed, step=10, error="disk full")
    drive.all(ev.SaveFailed, step=10, error="disk full")
    assert drive.tally.saves.failed == 1


def test_a_step_of_two_seconds_is_counted_up_to_2_5_seconds():
    steps = Tally().step_s
    steps.observe(2.0)
    assert steps.bounds_s[steps.counts.index(1)] == 2.5
    edges = histogram((1.0, 2.0))
    for value in (1.0, 1.5, 99.0):
        edges.observe(value)
    assert edges.counts == [1, 1, 1]


def test_a_frontier_takes_steps_in_any_order_once():
    frontier = Frontier(step=2)
    added = [frontier.add(step) for step in (2, 4, 4, 3, 5, 7)]
    assert added == [False, True, False, True, True, True]
    assert (frontier.step, frontier.ahead) == (5, {7})
    frontier.fill(6)
    assert (frontier.step, frontier.ahead) == (6, {7})
