"""What a run has done over all its starts, as far as its journals prove it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from remesh.actors.run.folder import RunFolder
from remesh.actors.run.journal_files import Journal
from remesh.actors.run.journal_reading import read_history
from remesh.actors.run.run_view import status_of
from remesh.data.digest import expected_digest
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.accounts.plain_values import plain
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.events import Event, WorkerReady
from remesh.orchestrator.job.job import Job


def report_of(folder: RunFolder, job: Job, *, status: str) -> dict[str, Any]:
    """`losses` has one for each step that the run stands on; null for one that was not finite or
    that no journal proves. The latter are `unproven_steps`, and `damage` says why.

    Cost: grows with the number of steps; it is asked for once, at the end.
    """
    history = read_history(folder.path)
    account = _Account()
    for start in history.starts:
        account.add(start)
    saved = max((state.step for state in folder.checkpoints()), default=0)
    span = account.span(max(account.last, saved), job.train.global_batch)
    losses = [
        record.did.loss if record else None
        for record in account.ledger.trained(account.lineage, span)
    ]
    expected = _expected_digests(job)
    told: dict[str, Any] = plain(
        {
            "status": status,
            "steps": span.last,
            "final_loss": losses[-1] if losses else None,
            "losses": losses,
            "samples": asdict(account.ledger.samples(account.lineage, span, expected)),
            "unproven_steps": list(_ranges(sorted(span.unproven))),
            "damage": [str(damage) for damage in history.damage],
            "generations": account.generations,
        }
    )
    return told


@dataclass(slots=True, kw_only=True)
class _Account:
    """`last` is the step that the run stands on; `proven` the newest step of each generation's
    start up to which no record can be missing.
    """

    ledger: Ledger = field(default_factory=Ledger)
    lineage: Lineage = field(default_factory=Lineage)
    generations: list[dict[str, Any]] = field(default_factory=list)
    proven: dict[int, int] = field(default_factory=dict)
    last: int = 0

    def add(self, start: Journal) -> None:
        machine = start.replay()
        chain, before = machine.state.lineage.chain, self.lineage.chain
        if before and chain and chain[0][0] <= before[-1][0]:
            # Its numbers do not go on from these: it knew nothing of them, nor do its steps.
            self.ledger, self.lineage = Ledger(), Lineage()
        events = [event for event, _ in journal.read(start.lines)]
        for event in events:
            self.ledger.note(event)
        self.last = max(machine.state.step, start.options.first_step)
        for generation, from_step in chain:
            self.lineage.begin(generation, from_step)
            self.proven[generation] = machine.state.step
        self.generations += _generations(machine, events)

    def span(self, last: int, global_batch: int) -> Span:
        span = Span(first=0, last=last, global_batch=global_batch)
        steps = zip(span.steps, self.ledger.trained(self.lineage, span), strict=True)
        unproven = (step for step, record in steps if record is None and not self._is_proven(step))
        return Span(first=0, last=last, global_batch=global_batch, unproven=frozenset(unproven))

    def _is_proven(self, step: int) -> bool:
        """Whether the journals would hold a record of the step if it had been made."""
        owner = self.lineage.owner(step)
        return owner is not None and step <= self.proven[owner]


def _ranges(steps: Sequence[int]) -> Iterator[str]:
    """Such as "7..12", "20"."""
    first = 0
    for index, step in enumerate(steps):
        if index + 1 == len(steps) or steps[index + 1] != step + 1:
            yield str(step) if first == index else f"{steps[first]}..{step}"
            first = index + 1


def _generations(machine: Controller, events: list[Event]) -> list[dict[str, Any]]:
    """Each generation with its members and their processes."""
    pids = {event.worker: event.pid for event in events if isinstance(event, WorkerReady)}
    described: list[dict[str, Any]] = status_of(view_of(machine))["generations"]
    for entry, life in zip(described, machine.state.generations, strict=True):
        entry["members"] = [
            {
                "rank": m.rank,
                "local_rank": m.local_rank,
                "worker": m.worker,
                "node": m.node,
                "pid": pids[m.worker],
            }
            for m in life.members
        ]
    return described


def _expected_digests(job: Job) -> Callable[[int], str]:
    """The digest that each step must have, from the order of the data alone."""
    num_rows = Manifest.load(Path(job.data.dir)).num_rows
    skips = parse_skips(job.data.skip)

    def expected(step: int) -> str:
        return expected_digest(
            step,
            global_batch=job.train.global_batch,
            num_rows=num_rows,
            seed=job.job.seed,
            skips=skips,
        ).hex()

    return expected
