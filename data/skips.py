"""Global batches that a job leaves out, and which batch a step trains then.

`data.skip = ["30..35"]` names global batches of the unskipped order, numbered from 1, both ends
included. Steps stay dense: step 30 then trains batch 36. Nothing of a skipped batch is read. The
other reading, that a skipped step happens and trains nothing, would put holes into the lr curve
and into every count of steps.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from remesh.data.data_error import DataError

_RANGE = re.compile(r"\s*(\d{1,18})\s*(?:\.\.\s*(\d{1,18})\s*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skips:
    """Skipped batches as (first, last) pairs, both included: sorted, disjoint, not adjacent."""

    ranges: tuple[tuple[int, int], ...] = ()

    def batch_of(self, step: int) -> int:
        """The global batch that a step trains: the step-th one that is not skipped."""
        batch = step
        for first, last in self.ranges:
            if batch < first:
                break
            batch += last - first + 1
        return batch


def parse_skips(texts: Sequence[str]) -> Skips:
    """Skips out of texts such as "30..35" or "30"; they may overlap and come in any order.

    Raises: DataError if a text is no range of batch numbers.
    """
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_parse_range(text) for text in texts):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return Skips(ranges=tuple(merged))


def _parse_range(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise DataError(
            f'data.skip: "{text}" is not a range of global batches; write it as "30..35"'
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if first < 1:
        raise DataError(f'data.skip: "{text}" starts at {first}; batches are numbered from 1')
    if last < first:
        raise DataError(f'data.skip: "{text}" is empty; did you mean "{last}..{first}"?')
    return first, last
