import json
import re
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from remesh.actors.jobs.job_logs import LogPosition, progress_of
from remesh.cli.driving.drive import POLL_S, STOPPING, drive, exit_code
from remesh.cli.driving.interrupts import SIGNALS, Interrupts
from remesh.cli.run_command import follow
from remesh.cli.screen.progress import LiveDisplay, PlainDisplay
from remesh.orchestrator.job.driver_words import RunStatus, RunWait
from remesh.orchestrator.user_errors import RemeshError


def running(step, *announcements):
    return RunStatus(
        phase="RUNNING",
        step=step,
        steps=80,
        loss=2.5,
        tokens_per_s=14200.0,
        layout="dp=4",
        generation=1,
        workers=4,
        announcements=announcements,
    )


def ended(status, reason="all steps are done"):
    return RunStatus(
        phase=status.upper(), step=80, steps=80, loss=2.25, ended=True, status=status, reason=reason
    )


class ScriptedRun:
    """Tells its statuses one after the other, the last one for ever; ends when it is stopped."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.stops = 0
        self.polls = 0

    def poll(self):
        self.polls += 1
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def stop(self):
        self.stops += 1
        self.statuses = [running(7), running(8), ended("stopped", "interrupted")]

    def report(self):
        return {"status": self.statuses[-1].status, "losses": [1.5]}

    def flaw(self):
        return None

    def close(self):
        pass


class Recorder:
    def __init__(self):
        self.shown, self.notes = [], []

    def show(self, status):
        self.shown.append(status)

    def note(self, text):
        self.notes.append(text)

    def close(self):
        pass


class Asked:
    def __init__(self, signal_number=None):
        self.signal_number = signal_number


def test_a_run_is_followed_to_its_end_and_every_status_is_shown_once():
    statuses = [running(1), running(2, "worker w3 lost: killed"), ended("finished")]
    display = Recorder()
    waits = []
    assert drive(ScriptedRun(*statuses), display, Asked(), wait=waits.append) == statuses[-1]
    assert display.shown == statuses
    assert waits == [0.2, 0.2]


def test_a_wish_to_stop_is_passed_on_once_and_the_run_ends_by_itself():
    run, display = ScriptedRun(running(6)), Recorder()
    wish = Asked()

    def ctrl_c(_):
        wish.signal_number = signal.SIGINT

    assert drive(run, display, wish, wait=ctrl_c).status == "stopped"
    assert run.stops == 1
    assert display.notes == [STOPPING]


def test_a_run_that_trains_is_asked_once_a_second_and_more_often_shortly_before_its_end():
    left_s = [100.0, 2.0, 1.5, 1.1, 0.3]
    statuses = [replace(running(6), left_s=left) for left in left_s]
    waits = []
    run = ScriptedRun(*statuses, ended("finished"))
    drive(run, Recorder(), Asked(), wait=waits.append)
    assert (run.polls, len(waits)) == (6, 5 + 5 + 2 + 1 + 1)
    assert set(waits) == {POLL_S}


def test_a_run_that_forms_a_mesh_is_asked_five_times_a_second():
    forming = replace(running(6), phase="FORMING", left_s=100.0)
    waiting = replace(running(6), left_s=100.0, wait=RunWait(text="a node", have=1, need="2"))
    waits = []
    run = ScriptedRun(forming, waiting, ended("finished"))
    drive(run, Recorder(), Asked(), wait=waits.append)
    assert waits == [POLL_S, POLL_S]


def test_a_wish_to_stop_does_not_wait_for_the_next_poll():
    run, wish, waits = ScriptedRun(replace(running(6), left_s=100.0)), Asked(), []

    def ctrl_c(wait_s):
        waits.append(wait_s)
        wish.signal_number = signal.SIGINT

    drive(run, Recorder(), wish, wait=ctrl_c)
    assert run.stops == 1
    assert waits[0] == POLL_S
    assert len(waits) == run.polls - 1


def test_a_run_that_had_ended_before_is_polled_once():
    run = ScriptedRun(ended("finished", "finished before"))
    drive(run, Recorder(), Asked(), wait=pytest.fail)
    assert run.polls == 1


@pytest.mark.parametrize(
    ("status", "signal_number", "code"),
    [
        ("finished", None, 0),
        ("finished", signal.SIGINT, 0),
        ("failed", None, 3),
        ("failed", signal.SIGINT, 3),
        ("stopped", None, 143),  # user 2: by `remesh stop`, which is no failure
        ("stopped", signal.SIGINT, 130),
        ("stopped", signal.SIGTERM, 143),
        ("preempted", None, 143),
    ],
)
def test_the_exit_code_tells_how_the_run_ended(status, signal_number, code):
    assert exit_code(ended(status, "because"), signal_number) == code


def test_a_failure_that_the_user_can_mend_has_the_code_of_a_user_error():
    assert exit_code(replace(ended("failed", "no space left"), user_error=True), None) == 2


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
def test_following_ends_with_the_reason_a_report_and_the_code(tmp_path, status):
    path, display = tmp_path / "r.json", Recorder()
    code = follow(ScriptedRun(ended(status, "because")), display, Asked(), path)
    assert code == exit_code(ended(status, "because"), None)
    assert json.loads(path.read_text()) == {"status": status, "losses": [1.5]}
    assert display.notes[-1] == f"{status} at step 80, loss 2.2500: because"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    run = ScriptedRun(ended("finished"))
    with pytest.raises(RemeshError, match=r"gone/r.json could not be written: No such file"):
        follow(run, Recorder(), Asked(), tmp_path / "gone" / "r.json")


class RunThatHangs(ScriptedRun):
    def poll(self):
        signal.raise_signal(signal.SIGINT)
        return running(6)


def test_the_second_ctrl_c_ends_at_once_even_in_a_call_that_hangs():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    display = Recorder()
    try:
        with Interrupts() as wish:
            assert follow(RunThatHangs(), display, wish, None) == 130
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert display.notes[-1].startswith("stopped at once")


def test_handlers_come_back_when_nobody_interrupted():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as wish:
        assert signal.getsignal(signal.SIGTERM) != before
    assert wish.signal_number is None
    assert signal.getsignal(signal.SIGTERM) == before


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def plain(width=200):
    clock = Clock()
    return PlainDisplay(Console(width=width), clock, lambda: 1_800_000_000.0), clock


def steps_of(lines):
    found = (re.fullmatch(r"\S+ \S+ step ([\d,]+)/.*", line) for line in lines)
    return [match[1] for match in found if match]


def test_without_a_terminal_a_dated_line_comes_every_hundredth_of_the_steps(capsys):
    display, _ = plain()
    for step in range(1, 2001):
        display.show(replace(running(step), steps=2000))
    lines = capsys.readouterr().out.splitlines()
    assert steps_of(lines) == ["1", *(f"{step:,}" for step in range(21, 2000, 20))]
    assert re.fullmatch(r"2027-01-1\d \d\d:\d\d:\d\d step 1/2,000  loss 2.5000 .*", lines[0])


def test_the_list_of_jobs_reads_what_a_driver_has_written(capsys):
    display, _ = plain()
    display.show(replace(running(1, "generation 1: dp=4"), steps=2000))
    display.show(replace(running(1500), steps=2000))
    assert progress_of(capsys.readouterr().out) == LogPosition(
        step=1500, reason="generation 1: dp=4"
    )
    display.note("finished at step 2000, loss 2.5: all")
    assert progress_of(capsys.readouterr().out).step == 2000


def test_a_hundred_thousand_steps_are_not_ten_thousand_lines(capsys):
    display, _ = plain()
    for step in range(1, 100_001, 5):
        display.show(replace(running(step), steps=100_000))
    assert len(capsys.readouterr().out.splitlines()) <= 101


def test_slow_steps_get_a_line_a_minute_whatever_else_is_told(capsys):
    display, clock = plain()
    display.show(running(1))
    clock.now_s = 59.0
    display.show(running(2, "checkpoint at step 2 is committed"))
    clock.now_s = 60.0
    display.show(running(2))
    lines = capsys.readouterr().out.splitlines()
    assert steps_of(lines) == ["1", "2"]
    assert [line[20:] for line in lines if "> " in line] == ["> checkpoint at step 2 is committed"]
    clock.now_s = 300.0
    display.show(running(2))  # no news
    display.show(ended("finished"))
    assert steps_of(capsys.readouterr().out.splitlines()) == ["80"]


def test_a_short_wait_is_not_told(capsys):
    """inputs B7"""
    display, clock = plain()
    wait = RunWait(text="forming a mesh", have=1, need="2", limit_s=20.0)
    for second in range(5):
        clock.now_s = float(second)
        display.show(replace(running(0), wait=wait))
    display.show(running(1))
    assert steps_of(capsys.readouterr().out.splitlines()) == ["1"]


def test_a_wait_that_changes_all_the_time_is_told_now_and_then(capsys):
    """inputs B7"""
    display, clock = plain()
    for second in range(61):
        clock.now_s = float(second)
        wait = RunWait(text="waiting for workers", have=second, need="1000")
        display.show(replace(running(0), wait=wait))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[0].endswith("waiting for workers: have 5, need 1000")


def test_on_a_terminal_announcements_stay_above_the_panel(capsys):
    console = Console(width=200, force_terminal=True, color_system=None)
    display = LiveDisplay(console)
    display.show(running(20, "worker [w3] lost: killed"))
    display.show(running(40))
    display.show(ended("finished"))
    display.close()
    out = capsys.readouterr().out
    assert re.search(r"\d\d:\d\d:\d\d  worker \[w3\] lost: killed\n", out)
    assert "step 40/80" in out
    assert "loss 2.5000" in out
    assert "step 80/80" not in out


def test_a_run_whose_last_checkpoint_cannot_be_read_back_is_not_finished(tmp_path):
    """security D3: at the end of a run too."""

    class Flawed(ScriptedRun):
        def flaw(self):
            return "checkpoint step-80 cannot be read: manifest.json: it is missing"

    display, report = Recorder(), tmp_path / "r.json"
    assert follow(Flawed(ended("finished")), display, Asked(), report) == 3
    assert display.notes[-1].startswith("failed at step 80, loss 2.2500: checkpoint step-80 cannot")
    assert "the same command goes on from the newest one that can be read" in display.notes[-1]
    assert json.loads(report.read_text())["status"] == "failed"
