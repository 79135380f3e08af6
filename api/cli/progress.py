"""The live view of a run: a line that moves on a terminal, a line now and then elsewhere.

Announcements, one sentence an event, stand above it and stay.
"""

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.user_text import count

LINE_STEPS = 10
LINE_S = 5.0
BAR_CELLS = 20


def progress_line(status: RunStatus) -> str:
    """Step, loss, tokens/s, layout, generation and workers, as far as they are known."""
    parts = [f"step {status.step}/{status.steps}"]
    if status.loss is not None:
        parts.append(f"loss {loss_text(status.loss)}")
    if status.tokens_per_s is not None:
        parts.append(f"{status.tokens_per_s:,.0f} tokens/s")
    if status.layout:
        parts.append(status.layout)
    parts.append(f"generation {status.generation}")
    parts.append(count(status.workers, "worker"))
    parts.append(status.phase.lower())
    return "  ".join(parts)


def loss_text(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "not finite"


def open_display(console: Console) -> "LiveDisplay | PlainDisplay":
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class LiveDisplay:
    """One line at the foot of a terminal, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, status: RunStatus) -> None:
        for text in status.announcements:
            self.note(text)
        if status.ended:
            return
        self._live.start()
        self._live.update(self._bar(status), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(f"[cyan]>[/] {escape(text)}", highlight=False)

    def close(self) -> None:
        self._live.stop()

    @staticmethod
    def _bar(status: RunStatus) -> Text:
        done = BAR_CELLS * status.step // max(status.steps, 1)
        bar = Text("━" * done, style="green")
        bar.append("━" * (BAR_CELLS - done), style="bright_black")
        return bar.append(f"  {progress_line(status)}", style="default")


class PlainDisplay:
    """A progress line every 10 steps or 5 seconds, whichever comes first, if there is news."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._shown_step = 0
        self._shown_s = clock()

    def show(self, status: RunStatus) -> None:
        for text in status.announcements:
            self.note(text)
        news = status.step - self._shown_step
        waited_s = self._clock() - self._shown_s
        if news >= LINE_STEPS or (news and (status.ended or waited_s >= LINE_S)):
            self._shown_step, self._shown_s = status.step, self._clock()
            self._print(progress_line(status))

    def note(self, text: str) -> None:
        self._print(f"> {text}")

    def close(self) -> None:
        """Nothing stays open."""

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
