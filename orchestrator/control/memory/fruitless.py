"""Steps in a row whose update all ranks skipped: nothing is learned while they go on."""

from dataclasses import dataclass

from remesh.orchestrator.control.words.records import StepRecord


@dataclass(slots=True, kw_only=True)
class Fruitless:
    """The `in_row` newest steps were skipped, from `first` on, at a learning rate of `lr`."""

    in_row: int = 0
    first: int = 0
    lr: float = 0.0

    def note(self, record: StepRecord) -> str | None:
        """What to say of it, if anything: of the first in a row, and each time they double."""
        if record.did.applied:
            self.in_row = 0
            return None
        self.first = self.first if self.in_row else record.step
        self.in_row += 1
        self.lr = record.did.lr
        if self.in_row & (self.in_row - 1):
            return None
        row = f", {self.in_row} in a row" if self.in_row > 1 else ""
        why = "its loss or gradient is not finite" if record.did.tokens else "it has no token"
        return f"step {record.step} updated nothing{row}: {why}"
