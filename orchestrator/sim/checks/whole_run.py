"""All starts of a simulated run together: one timeline, which no start may leave."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.world import GLOBAL_BATCH, Saved, digest_of, rate_at

_GENERATION = re.compile(r"\.gen-(\d+)")


@dataclass(slots=True)
class WholeRun:
    """Fed with every mesh and every event of every start. `committed` is what is on storage.

    `failed` has the generations that could not read a checkpoint, by its label: a start counts
    those of the starts before as well.
    """

    ledger: Ledger = field(default_factory=Ledger)
    lineage: Lineage = field(default_factory=Lineage)
    formed: dict[int, Form] = field(default_factory=dict)
    committed: Mapping[str, Saved] = field(default_factory=dict)
    failed: dict[str, set[int]] = field(default_factory=dict)

    def form(self, form: Form) -> None:
        """A mesh begins. It may read only a checkpoint that the run stands on."""
        if self.formed.get(form.generation, form) != form:
            raise InvariantError(f"{form} has the number of {self.formed[form.generation]}")
        restore = form.restore
        if isinstance(restore, CheckpointState) and self.formed:
            generation = generation_of(restore.name)
            if generation is not None and not self.lineage.holds(generation, restore.step):
                raise InvariantError(f"{form} goes back to an abandoned timeline")
        self.formed[form.generation] = form
        self.lineage.begin(form.generation, form.from_step)

    def check_samples(self, last: int, amendments: Amendments) -> None:
        """Nothing is lost or repeated up to this step, and all trained with what held then."""
        span = Span(first=0, last=last, global_batch=GLOBAL_BATCH)
        samples = self.ledger.samples(self.lineage, span, digest_of)
        if samples.lost or samples.repeated or samples.consumed != samples.expected:
            raise InvariantError(f"samples do not add up: {samples}")
        trained = self.ledger.trained(self.lineage, span)
        for step, record in zip(span.steps, trained, strict=True):
            rate = rate_at(amendments, step)
            if record is not None and record.did.lr != rate:
                raise InvariantError(f"step {step} trained at {record.did.lr}, not {rate}")


def generation_of(name: str) -> int | None:
    """Which generation has left this checkpoint, if its name says so."""
    found = _GENERATION.search(name)
    return None if found is None else int(found[1])
