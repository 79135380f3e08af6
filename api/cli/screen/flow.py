"""Renderables that take any width: parts that flow, sentences that hang beside a mark, a bar."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

GAP = 2
MOST_BAR_CELLS = 80


@dataclass(frozen=True, slots=True)
class Flow:
    """Parts beside each other, on as many lines as it takes; none is torn unless it has to be."""

    parts: Sequence[Text]
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        line, used = plain_text(""), 0
        for part in self.parts:
            if used and used + GAP + part.cell_len > options.max_width:
                yield line
                line, used = plain_text(" " * self.indent), self.indent
            elif used:
                line.append(" " * GAP)
                used += GAP
            line.append_text(part)
            used += part.cell_len
        if used:
            yield line


@dataclass(frozen=True, slots=True)
class Hanging:
    """A sentence behind a mark, or behind blanks; its lines stand below each other."""

    mark: Text
    sentence: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self.mark.cell_len
        lines = self.sentence.wrap(console, max(1, options.max_width - indent), overflow="fold")
        for number, line in enumerate(lines):
            line.rstrip()
            before = plain_text(" " * indent) if number else self.mark
            yield Text.assemble(before, line, overflow="fold")


@dataclass(frozen=True, slots=True)
class Bar:
    """How much of a whole is done, on a line of its own."""

    done: int
    whole: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        width = min(MOST_BAR_CELLS, options.max_width)
        yield ProgressBar(total=max(self.whole, 1), completed=self.done, width=width)
        yield Segment.line()


def plain_text(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="fold")


def dated(rows: Iterable[tuple[str, str]]) -> Group:
    """Sentences, each behind its moment."""
    return Group(
        *(Hanging(plain_text(f"{moment}  ", "dim"), plain_text(said)) for moment, said in rows)
    )
