"""What each step of a run came to, as far as its journals prove it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_files import Journal
from remesh.actors.history.journal_reading import history_of
from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.records import Member, StepRecord


@dataclass(slots=True, kw_only=True)
class TrainedSteps:
    """`last` is the step that the run stands on; `proven` the newest step of each generation's
    start up to which no record can be missing.
    """

    ledger: Ledger = field(default_factory=Ledger)
    lineage: Lineage = field(default_factory=Lineage)
    proven: dict[int, int] = field(default_factory=dict)
    last: int = 0

    def add(self, machine: Controller, events: Iterable[Event]) -> None:
        """One more start of the run, as it stood after these events."""
        chain, before = machine.state.lineage.chain, self.lineage.chain
        if before and chain and chain[0][0] <= before[-1][0]:
            # Its numbers do not go on from these: it knew nothing of them, nor do its steps.
            self.ledger, self.lineage = Ledger(), Lineage()
        for event in events:
            self.ledger.note(event)
        self.last = max(machine.state.step, machine.options.first_step)
        for generation, from_step in chain:
            self.lineage.begin(generation, from_step)
            self.proven[generation] = machine.state.step

    def span(self, last: int, global_batch: int) -> Span:
        span = Span(first=0, last=last, global_batch=global_batch)
        steps = zip(span.steps, self.ledger.trained(self.lineage, span), strict=True)
        unproven = (step for step, record in steps if record is None and not self._is_proven(step))
        return Span(first=0, last=last, global_batch=global_batch, unproven=frozenset(unproven))

    def _is_proven(self, step: int) -> bool:
        """Whether the journals would hold a record of the step if it had been made."""
        owner = self.lineage.owner(step)
        return owner is not None and step <= self.proven[owner]


def rows_of(run_folder: Path) -> list[dict[str, Any]]:
    """A row for each step that the run stands on, oldest first; one without a record is left out.

    Cost: all journals of the run are replayed. Raises: UserError if there is no run.
    """
    trained = TrainedSteps()
    for start in history_of(run_folder).starts:
        trained.add(*lived(start))
    span = Span(first=0, last=trained.last, global_batch=1)
    return [_row(record) for record in trained.ledger.trained(trained.lineage, span) if record]


def lived(
    start: Journal, meshes: dict[int, tuple[Member, ...]] | None = None
) -> tuple[Controller, list[Event]]:
    """The machine as a start of the run left it, and what had happened to it.

    `meshes` gets the members of each generation, which a machine does not remember for long.

    Cost: each line is read once.
    """
    machine, events = Controller(start.options), []
    for _, event, now_s in start.handled():
        machine.handle(event, now_s)
        events.append(event)
        if meshes is not None and machine.state.generations:
            meshes[machine.state.last_generation] = machine.state.current.members
    return machine, events


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
