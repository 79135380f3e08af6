"""The display of a run: a panel that is redrawn on a terminal, dated lines elsewhere.

Announcements, one sentence an event, stand above it and stay.
"""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from remesh.cli.screen.flow import dated
from remesh.cli.screen.run_panel import RunPanel
from remesh.cli.screen.said import dated_text, moment_text, progress_line, wait_text
from remesh.orchestrator.job.driver_words import RunStatus, RunWait

LINE_STEPS = 10
LINES = 100  # for the steps of a run, dated those that time asks for
LINE_S = 60.0
SETTLED_S = 5.0  # a wait that is over sooner is not worth a line

Clock = Callable[[], float]


def open_display(console: Console) -> "LiveDisplay | PlainDisplay":
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class LiveDisplay:
    """A panel at the foot of a terminal, redrawn in place."""

    def __init__(self, console: Console, wall: Clock = time.time) -> None:
        self._console = console
        self._wall = wall
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, status: RunStatus) -> None:
        for text in status.announcements:
            self.note(text)
        if status.ended:
            return
        self._live.start()
        self._live.update(RunPanel(status, self._wall()), refresh=True)

    def note(self, text: str) -> None:
        now_s = self._wall()
        self._console.print(dated([(moment_text(now_s, now_s), text)]))

    def close(self) -> None:
        self._live.stop()


class PlainDisplay:
    """A dated line a minute if there is news, and for each hundredth of the steps.

    While the run waits, a line when what it waits for changes, and again each minute.
    """

    def __init__(
        self, console: Console, clock: Clock = time.monotonic, wall: Clock = time.time
    ) -> None:
        self._console = console
        self._clock = clock
        self._wall = wall
        self._shown_step: int | None = None
        self._shown_s = self._spoke_s = clock()
        self._waits_since_s: float | None = None
        self._told_wait: tuple[str, int, str] | None = None

    def show(self, status: RunStatus) -> None:
        for text in status.announcements:
            self.note(text)
        if status.wait is not None and not status.ended:
            self._show_wait(status.wait)
            return
        self._waits_since_s = self._told_wait = None
        if self._is_due(status):
            self._shown_step, self._shown_s = status.step, self._clock()
            self._print(progress_line(status))

    def note(self, text: str) -> None:
        self._print(f"> {text}")

    def close(self) -> None:
        """Nothing stays open."""

    def _is_due(self, status: RunStatus) -> bool:
        if status.step == (self._shown_step or 0):
            return False
        if self._shown_step is None or status.ended:
            return True
        news = status.step - self._shown_step
        often = max(LINE_STEPS, status.steps // LINES)
        return abs(news) >= often or self._clock() - self._shown_s >= LINE_S

    def _show_wait(self, wait: RunWait) -> None:
        now_s = self._clock()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        told = (wait.text, wait.have, wait.need)
        quiet_s = now_s - max(self._spoke_s, self._waits_since_s)
        if quiet_s >= (LINE_S if told == self._told_wait else SETTLED_S):
            self._told_wait = told
            self._print(wait_text(wait))

    def _print(self, text: str) -> None:
        self._spoke_s = self._clock()
        line = f"{dated_text(self._wall())} {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
