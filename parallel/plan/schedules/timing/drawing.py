"""A timeline as text: a line for each rank, a column for each unit of time, in bands that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    InputBackward,
    Operation,
    Overlap,
    WeightBackward,
)
from remesh.parallel.plan.schedules.timing.timeline import Timeline

IDLE, GOES_ON = ".", "="

_LETTERS = {Forward: "F", Backward: "B", InputBackward: "I", WeightBackward: "W"}
_CHUNKS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Cells of each rank, all of one width."""

    lines: tuple[tuple[str, ...], ...]

    def bands(self, width: int) -> Iterator[str]:
        """Lines of at most `width` letters, if a cell fits at all; a blank one between bands."""
        names = [f"rank {rank}" for rank in range(len(self.lines))]
        margin = max(map(len, names))
        cell = len(self.lines[0][0]) + 1
        many = max(1, (width - margin - 1) // cell)
        for first in range(0, len(self.lines[0]), many):
            if first:
                yield ""
            for name, line in zip(names, self.lines, strict=True):
                yield " ".join([name.ljust(margin), *line[first : first + many]]).rstrip()


def draw(timeline: Timeline, pipeline: Pipeline) -> Drawing:
    """What each rank computes in each unit: `F3` for the forward of microbatch 3, `F3b` for that
    through the second stage of the rank, `==` while it goes on, `..` while the rank idles.

    All times have to be whole numbers.
    """
    rows = [_row(timeline, pipeline, rank) for rank in range(len(timeline.ranks))]
    width = max(len(cell) for row in rows for cell in row)
    return Drawing(lines=tuple(tuple(_filled(cell, width) for cell in row) for row in rows))


def _row(timeline: Timeline, pipeline: Pipeline, rank: int) -> list[str]:
    row = [IDLE] * int(timeline.length)
    for timed in timeline.ranks[rank]:
        name = _name(timed.operation, pipeline)
        if name:
            for unit in range(int(timed.start), int(timed.end)):
                row[unit] = name if unit == timed.start else GOES_ON
    return row


def _name(operation: Operation, pipeline: Pipeline) -> str:
    if isinstance(operation, Overlap):
        return _name(operation.forward, pipeline) + _name(operation.backward, pipeline)
    if not isinstance(operation, Forward | Backward | InputBackward | WeightBackward):
        return ""
    chunk = _CHUNKS[pipeline.chunk_of(operation.stage)] if pipeline.chunks > 1 else ""
    return f"{_LETTERS[type(operation)]}{operation.microbatch}{chunk}"


def _filled(cell: str, width: int) -> str:
    return cell * width if cell in (IDLE, GOES_ON) else cell.ljust(width)


def legend(drawn: Sequence[Sequence[Operation]], pipeline: Pipeline) -> str:
    """What the letters mean, of those that there are."""
    kinds = {type(operation) for schedule in drawn for operation in schedule}
    said = [f"{_LETTERS[kind]} {_SAID[kind]}" for kind in _LETTERS if kind in kinds]
    if pipeline.chunks > 1:
        said.append(f"a to {_CHUNKS[pipeline.chunks - 1]} the stages of a rank")
    return ", ".join([*said, f"{GOES_ON} going on", f"{IDLE} idle"])


_SAID = {
    Forward: "forward",
    Backward: "backward",
    InputBackward: "its half for the input",
    WeightBackward: "its half for the weights",
}
