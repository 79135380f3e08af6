"""What each step of a run came to, as far as its journals prove it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_files import Journal
from remesh.actors.history.journal_reading import history_of
from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.records import StepRecord


@dataclass(slots=True, kw_only=True)
class TrainedSteps:
    """`last` is the step that the run stands on."""

    ledger: Ledger = field(default_factory=Ledger)
    lineage: Lineage = field(default_factory=Lineage)
    last: int = 0

    def add(self, start: Journal) -> None:
        """One more start of the run. Cost: each line is read once."""
        machine, ledger = start.machine(), Ledger()
        for _, event, now_s in start.handled():
            machine.handle(event, now_s)
            ledger.note(event)
        chain, before = machine.state.lineage.chain, self.lineage.chain
        if before and chain and chain[0][0] <= before[-1][0]:
            # Its numbers do not go on from these: it knew nothing of them, nor do its steps.
            self.ledger, self.lineage = Ledger(), Lineage()
        for key, record in ledger.records.items():
            self.ledger.records.setdefault(key, record)
        self.last = max(machine.state.step, machine.options.first_step)
        for generation, from_step in chain:
            self.lineage.begin(generation, from_step)


def rows_of(run_folder: Path) -> list[dict[str, Any]]:
    """A row for each step that the run stands on, oldest first; one without a record is left out.

    Cost: all journals of the run are replayed. Raises: UserError if there is no run.
    """
    trained = TrainedSteps()
    for start in history_of(run_folder).starts:
        trained.add(start)
    span = Span(first=0, last=trained.last, global_batch=1)
    return [_row(record) for record in trained.ledger.trained(trained.lineage, span) if record]


def _row(record: StepRecord) -> dict[str, Any]:
    did = record.did
    return {
        "step": record.step,
        "loss": did.loss,
        "grad_norm": did.grad_norm,
        "lr": did.lr,
        "tokens": did.tokens,
        "step_s": record.step_s,
        "ended_s": record.ended_s,
    }
