"""What each step of a run came to, for whoever wants to draw or compare it."""

from pathlib import Path
from typing import Any

from remesh.actors.run.journal_files import read_journals
from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.user_errors import UserError


def rows_of(run_folder: Path) -> list[dict[str, Any]]:
    """A row for each step that the run stands on, oldest first; one without a record is left out.

    Cost: all journals of the run are replayed. Raises: UserError if there is no run.
    """
    journals = read_journals(run_folder)
    if not journals:
        raise UserError(f"{run_folder}: there is no run here; start one with: remesh run JOB")
    ledger, lineage, last = Ledger(), Lineage(), 0
    for found in journals:
        machine = Controller(found.options)
        for event, now_s in journal.read(found.lines):
            machine.handle(event, now_s)
            ledger.note(event)
        for generation, from_step in machine.state.lineage.chain:
            lineage.begin(generation, from_step)
        last = max(machine.state.step, found.options.first_step)
    span = Span(first=0, last=last, global_batch=1)
    return [_row(record) for record in ledger.trained(lineage, span) if record is not None]


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
