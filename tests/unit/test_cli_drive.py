import json
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from remesh.cli.drive import STOPPING, drive, exit_code
from remesh.cli.interrupts import SIGNALS, Interrupts
from remesh.cli.progress import LiveDisplay, PlainDisplay, progress_line
from remesh.cli.run_command import follow
from remesh.orchestrator.job.driver_words import RunStatus
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
        ("stopped", None, 3),
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


def test_the_progress_line_tells_all_it_knows():
    assert progress_line(running(20)) == (
        "step 20/80  loss 2.5000  14,200 tokens/s  dp=4  generation 1  4 workers  running"
    )
    assert progress_line(RunStatus(phase="FORMING", step=0, steps=80, workers=1)) == (
        "step 0/80  generation 0  1 worker  forming"
    )


def test_without_a_terminal_a_line_comes_every_ten_steps_or_five_seconds(capsys):
    clock = Clock()
    display = PlainDisplay(Console(width=200), clock)
    for step in range(1, 21):
        display.show(running(step))
    clock.now_s = 4.9
    display.show(running(21))
    clock.now_s = 5.0
    display.show(running(21))
    clock.now_s = 60.0
    display.show(running(21))
    display.show(running(22, "worker [w3] lost: killed"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "step 10/80",
        "step 20/80",
        "step 21/80",
        "> worker [w3] lost: killed",
        "step 22/80",
    ]


def test_on_a_terminal_announcements_stay_above_the_moving_line(capsys):
    console = Console(width=200, force_terminal=True, color_system=None)
    display = LiveDisplay(console)
    display.show(running(20, "worker [w3] lost: killed"))
    display.show(running(40))
    display.show(ended("finished"))
    display.close()
    out = capsys.readouterr().out
    assert "> worker [w3] lost: killed\n" in out
    assert "step 40/80  loss 2.5000" in out
    assert "step 80/80" not in out
