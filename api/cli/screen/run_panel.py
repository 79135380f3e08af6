"""A live run as its driver sees it: what stands at the foot of a terminal and is drawn anew."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from remesh.cli.screen.flow import Bar, Flow, dated, plain_text
from remesh.cli.screen.said import (
    duration_text,
    loss_text,
    moment_text,
    share_text,
    speed_text,
    state_text,
    wait_text,
)
from remesh.cli.screen.strips import ASCII, FULL, Glyphs, sparkline, timeline
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.user_text import count

SENTENCES = 2
MOST_CELLS = 32  # of a strip
LEAST_CELLS = 8
GOOD, BAD, FAINT = "green", "red", "dim"


class RunPanel:
    """`now_s` is the moment at which it is drawn."""

    def __init__(self, status: RunStatus, now_s: float) -> None:
        self._status = status
        self._now_s = now_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self._status
        glyphs = ASCII if options.ascii_only else FULL
        cells = max(LEAST_CELLS, min(MOST_CELLS, options.max_width // 3))
        yield Flow([plain_text(*part) for part in _head(status)])
        yield Bar(status.step, status.steps)
        yield Flow(list(measures(status, cells, glyphs)))
        yield Flow(list(_mesh(status, cells, glyphs)))
        if status.wait is not None:
            yield plain_text(wait_text(status.wait), "yellow")
        newest = status.generations[-SENTENCES:]
        yield dated(
            (moment_text(mark.started_s, self._now_s), f"generation {mark.generation}: {mark.text}")
            for mark in newest
        )


def _head(status: RunStatus) -> Iterator[tuple[str, str]]:
    if status.run:
        yield status.run, "bold"
    yield state_text(status.phase), GOOD if status.phase.lower() == "running" else "yellow"
    yield f"step {status.step:,}/{status.steps:,}", ""
    yield share_text(status.step, status.steps), ""
    if status.left_s:
        yield f"left {duration_text(status.left_s)}", ""
    if status.folder:
        yield status.folder, FAINT


def measures(status: RunStatus, cells: int, glyphs: Glyphs) -> Iterator[Text]:
    """Loss, speed, goodput and what is saved, as far as they are known."""
    if status.loss is not None:
        loss = plain_text(f"loss {loss_text(status.loss)} ")
        yield loss.append(sparkline(status.losses, cells, glyphs), style="cyan")
    if status.tokens_per_s is not None:
        yield plain_text(speed_text(status.tokens_per_s))
    if status.step_s is not None:
        yield plain_text(f"step {duration_text(status.step_s)}")
    if status.goodput is not None:
        yield plain_text(f"goodput {share_text(status.goodput)}")
    yield plain_text(saved_text(status.saved_step, status.saved_ago_s))


def saved_text(step: int | None, ago_s: float | None) -> str:
    """The moment of a checkpoint is not known of those that were there before the journal."""
    if step is None:
        return "nothing saved yet"
    if ago_s is None:
        return f"saved at step {step:,}"
    return f"saved {duration_text(ago_s)} ago (step {step:,})"


def _mesh(status: RunStatus, cells: int, glyphs: Glyphs) -> Iterator[Text]:
    mesh = f"mesh {status.layout} on" if status.layout and status.workers else "no mesh now,"
    yield plain_text(f"{mesh} {count(status.nodes, 'node')}")
    yield plain_text(f"{count(status.workers, 'worker')}, {status.spares} spare")
    strip = timeline(status.generations, status.step, cells, glyphs)
    if strip:
        yield plain_text(f"generations {strip}", FAINT)
