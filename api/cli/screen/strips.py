"""Rows of cells: losses over steps, and generations over steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remesh.orchestrator.job.driver_words import GenerationMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """`levels` go from the lowest to the highest; `lost` is what is not finite."""

    levels: str
    lost: str
    edge: str
    line: str
    tip: str


FULL = Glyphs(levels="▁▂▃▄▅▆▇█", lost="?", edge="▏", line="─", tip="▶")
ASCII = Glyphs(levels="_.:-=+*#", lost="?", edge="|", line="-", tip=">")


def sparkline(losses: Sequence[float], cells: int, glyphs: Glyphs = FULL) -> str:
    """At most so many cells, the oldest on the left; one with a loss that is not finite is marked.

    The scale is that of the finite ones. Without a loss it is empty.
    """
    means = _means(losses, cells)
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(
        _level(glyphs, mean, low, high) if math.isfinite(mean) else glyphs.lost for mean in means
    )


def timeline(marks: Sequence[GenerationMark], step: int, cells: int, glyphs: Glyphs = FULL) -> str:
    """Where each generation began, up to `step`; one with no room for its number has none."""
    if not marks:
        return ""
    first = marks[0].from_step
    span = max(step - first, 1)
    row = [glyphs.line] * (cells - 1) + [glyphs.tip]
    free = 0
    for mark in marks:
        label = f"{glyphs.edge}{mark.generation}"
        at = (cells - 1) * max(0, mark.from_step - first) // span
        if free <= at and at + len(label) < cells:
            row[at : at + len(label)] = label
            free = at + len(label)
    return "".join(row)


def _level(glyphs: Glyphs, mean: float, low: float, high: float) -> str:
    """Halves, since the distance of two finite numbers need not be finite."""
    span = high / 2 - low / 2
    share = (mean / 2 - low / 2) / span if span > 0 else 0.0
    return glyphs.levels[round(share * (len(glyphs.levels) - 1))]


def _means(losses: Sequence[float], cells: int) -> list[float]:
    """The losses in at most so many groups, each with its mean."""
    if len(losses) <= cells:
        return list(losses)
    bounds = [len(losses) * cell // cells for cell in range(cells + 1)]
    return [sum(losses[start:end]) / (end - start) for start, end in pairwise(bounds)]
