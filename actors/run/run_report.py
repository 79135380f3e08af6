"""What a run has done over all its starts, as far as its journals prove it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.trained_steps import TrainedSteps, lived
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.told import status_of
from remesh.data.row_hashes import expected_digests
from remesh.data.skips import parse_skips
from remesh.orchestrator.accounts.plain_values import plain
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.events import Event, WorkerReady
from remesh.orchestrator.control.words.records import Member
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.job import Job
from remesh.parallel.state.root_manifest import parse_name

Meshes = dict[int, tuple[Member, ...]]  # by generation


def report_of(folder: RunFolder, job: Job, *, status: str) -> dict[str, Any]:
    """`losses` has one for each step that the run stands on; null for one that was not finite or
    that no journal proves. The latter are `unproven_steps`, and `damage` says why.

    Cost: grows with the number of steps; it is asked for once, at the end.
    """
    history = read_history(folder.path)
    trained, generations = TrainedSteps(), []
    meshes: Meshes = {}
    lives = [lived(start, meshes) for start in history.starts]
    for machine, events in lives:
        trained.add(machine, events)
        generations += _generations(machine, events, meshes)
    saved = max((state.step for state in folder.checkpoints()), default=0)
    span = trained.span(max(trained.last, saved), job.train.global_batch)
    records = trained.ledger.trained(trained.lineage, span)
    losses = [record.did.loss if record else None for record in records]
    machines = [machine for machine, _ in lives]
    first = _origin_step(machines)
    unproven = frozenset(step for step in span.unproven if step > first)
    own = replace(span, first=first, unproven=unproven)
    expected = _expected_digests(job, machines[-1].amendments if machines else ())
    told: dict[str, Any] = plain(
        {
            "status": status,
            "steps": span.last,
            "final_loss": losses[-1] if losses else None,
            "losses": losses,
            "samples": asdict(trained.ledger.samples(trained.lineage, own, expected)),
            "unproven_steps": list(_ranges(sorted(unproven))),
            "damage": [str(damage) for damage in history.damage],
            "generations": generations,
        }
    )
    return told


def _ranges(steps: Sequence[int]) -> Iterator[str]:
    """Such as "7..12", "20"."""
    first = 0
    for index, step in enumerate(steps):
        if index + 1 == len(steps) or steps[index + 1] != step + 1:
            yield str(step) if first == index else f"{steps[first]}..{step}"
            first = index + 1


def _generations(machine: Controller, events: list[Event], meshes: Meshes) -> list[dict[str, Any]]:
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
            for m in meshes[life.generation]
        ]
    return described


def _origin_step(machines: Sequence[Controller]) -> int:
    """Up to which step another run has trained, from which this one branched off."""
    origins = (machine.options.origin for machine in machines)
    ref = parse_name(next(origins, "").rpartition("/")[2])
    return ref.step if ref else 0


def _expected_digests(job: Job, amendments: Amendments) -> Callable[[int], str]:
    """The digest that each step must have, from the order of the data and the rows as built."""
    folder = Path(job.data.dir)
    digests = expected_digests(folder, global_batch=job.train.global_batch, seed=job.job.seed)
    parsed = cache(parse_skips)

    def expected(step: int) -> str:
        return digests.of(step, parsed(job.at(step, amendments).data.skip)).hex()

    return expected
