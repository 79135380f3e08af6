"""What each step of a run came to, in some sixty bytes, folded as the records come.

A report of a million steps needs no more of them than this, and compares each digest when its step
is told and not at the end. A row belongs to the newest generation that trained its step: as a
generation abandons all later steps of its forerunners, no older record can count any more. What is
left of a row whose generation is not the one that the lineage names counts for nothing.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from remesh.orchestrator.accounts.ledger import SampleCounts, Span
from remesh.orchestrator.control.words.records import StepRecord

Chain = Sequence[tuple[int, int]]
Generations = npt.NDArray[np.int64]

NOBODY = -1
_ROW = np.dtype(
    [("generation", "<i8"), ("samples", "<i8"), ("loss", "<f8"), ("digest", "S40"), ("right", "?")]
)


class StepRows:
    """Memory: what has been trained, whatever of it was lost and trained again."""

    def __init__(self) -> None:
        self._rows = self._empty(1024)
        self._twice: dict[tuple[int, int], int] = {}

    @property
    def num_bytes(self) -> int:
        return self._rows.nbytes

    def clear(self) -> None:
        """What follows stands on none of these steps."""
        self._rows["generation"] = NOBODY
        self._twice.clear()

    def note(
        self,
        generation: int,
        from_step: int,
        records: Iterable[StepRecord],
        expected: Callable[[int], str],
    ) -> None:
        """Records of a generation that began after `from_step`, in any order and repeated.

        `expected` gives the digest that a step must have.
        """
        for record in records:
            did, index = record.did, record.step - 1
            if record.step <= from_step:
                self._twice.setdefault((generation, record.step), did.samples)
                continue
            while index >= len(self._rows):
                self._rows = np.concatenate([self._rows, self._empty(len(self._rows))])
            row = self._rows[index]
            if generation > row["generation"]:
                loss = np.nan if did.loss is None else did.loss
                right = did.digest == expected(record.step)
                self._rows[index] = (generation, did.samples, loss, did.digest.encode(), right)

    def losses(self, chain: Chain, last: int) -> list[float | None]:
        """That of each step, None for one without a finite loss or without a record."""
        rows, found = self._of(chain, last)
        known = found & np.isfinite(rows["loss"])
        losses: list[float | None] = rows["loss"].tolist()
        for index in np.flatnonzero(~known).tolist():
            losses[index] = None
        return losses

    def unrecorded(self, chain: Chain, last: int) -> list[int]:
        """The steps without a record."""
        _, found = self._of(chain, last)
        return (np.flatnonzero(~found) + 1).tolist()

    def samples(self, chain: Chain, span: Span) -> SampleCounts:
        """What `Ledger.samples` says of the same records."""
        rows, found = self._of(chain, span.last)
        rows, found = rows[span.first :], found[span.first :]
        wrong = found & ~rows["right"]
        num_lost = len(rows) - int(found.sum()) - len(span.unproven) + int(wrong.sum())
        lost = num_lost * span.global_batch
        repeated = int(rows["samples"][wrong].sum()) + self._again(dict(chain))
        unproven = span.global_batch * len(span.unproven)
        text = b"".join(digest + b"\n" for digest in rows["digest"][found].tolist())
        return SampleCounts(
            expected=span.global_batch * len(span.steps),
            consumed=int(rows["samples"][found].sum()),
            unproven=unproven,
            lost=None if unproven and not lost else lost,
            repeated=None if unproven and not repeated else repeated,
            digest=None if unproven else hashlib.sha256(text).hexdigest(),
        )

    def _of(self, chain: Chain, last: int) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
        """The rows of the first steps, and which of them are of the generation that counts."""
        rows = self._rows[:last]
        if len(rows) < last:
            rows = np.concatenate([rows, self._empty(last - len(rows))])
        owners = np.full(last, NOBODY, np.int64)
        for generation, from_step in chain:
            owners[from_step:] = generation
        found = (rows["generation"] == owners) & (owners != NOBODY)
        return rows, found

    def _again(self, began: Mapping[int, int]) -> int:
        """Samples of steps that a generation trained although it had begun beyond them."""
        return sum(samples for (number, _), samples in self._twice.items() if number in began)

    @staticmethod
    def _empty(length: int) -> npt.NDArray[np.void]:
        rows = np.zeros(length, _ROW)
        rows["generation"] = NOBODY
        return rows
