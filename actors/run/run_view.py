"""A run in numbers: for the driver's progress line, for `remesh status`, and for the report."""

import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from remesh.actors.orders import RunSpec
from remesh.actors.run.journal_files import JournalWriter, read_journals
from remesh.data.digest import expected_digest
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.accounts.plain_values import plain
from remesh.orchestrator.accounts.view import View, view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.events import Event, WorkerReady
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.state.root_manifest import parse_name


class RunView:
    """Reads the machine under `lock`, which whoever changes it holds as well."""

    def __init__(self, machine: Controller, spec: RunSpec, writer: JournalWriter) -> None:
        self.lock = threading.Lock()
        self._machine = machine
        self._spec = spec
        self._writer = writer
        self._failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """The controller itself cannot go on: from now on the run has failed."""
        self._failure = error

    def run_status(self, seen: int) -> RunStatus:
        with self.lock:
            view = view_of(self._machine)
        status = self._status(view, seen)
        return failed(status, self._failure) if self._failure else status

    def _status(self, view: View, seen: int) -> RunStatus:
        return RunStatus(
            phase=view.phase,
            step=view.step,
            steps=view.steps,
            loss=view.last.did.loss if view.last else None,
            tokens_per_s=view.last.did.tokens / view.last.step_s if view.last else None,
            layout=layout_text(view.layout),
            generation=view.generation,
            workers=sum(worker.rank is not None for worker in view.workers),
            announcements=tuple(self._writer.announcements[seen:]),
            ended=view.ended,
            status=view.phase if view.ended else "",
            reason=view.reason,
            user_error=view.user_error,
        )

    def status(self) -> dict[str, Any]:
        with self.lock:
            return status_of(view_of(self._machine))

    def report(self) -> dict[str, Any]:
        with self.lock:
            status = view_of(self._machine).phase.lower()
        return report_of(Path(self._spec.folder), self._spec.job, status=status)


def failed(status: RunStatus, error: Exception) -> RunStatus:
    """The status of a run whose controller met this error. The user can mend a full disk."""
    storage = isinstance(error, OSError)
    what = "the run's folder cannot be used" if storage else "the controller failed"
    return replace(
        status,
        ended=True,
        status="failed",
        reason=f"{what}: {error}; the same command resumes at the last checkpoint",
        user_error=storage,
    )


def status_of(view: View) -> dict[str, Any]:
    """The view as plain JSON values."""
    values: dict[str, Any] = plain(asdict(view))
    values["layout"] = layout_text(view.layout)
    for entry, life in zip(values["generations"], view.generations, strict=True):
        entry["layout"] = layout_text(life.layout)
    return values


def layout_text(layout: Layout | None) -> str:
    """The degrees above 1, such as "dp=4"; dp always stands."""
    if layout is None:
        return ""
    degrees = asdict(layout)
    return " ".join(f"{axis}={n}" for axis, n in degrees.items() if n > 1 or axis == "dp")


def report_of(run_folder: Path, job: Job, *, status: str) -> dict[str, Any]:
    """What the run has done over all its starts, proven from its journals.

    Cost: grows with the number of steps; it is asked for once, at the end.
    """
    journals = read_journals(run_folder)
    if not journals:
        raise UserError(f"{run_folder}: its journal is gone, so there is nothing to report from")
    machines = [found.replay() for found in journals]
    ledger, lineage = Ledger(), Lineage()
    generations = []
    for found, machine in zip(journals, machines, strict=True):
        events = [event for event, _ in journal.read(found.lines)]
        for event in events:
            ledger.note(event)
        for generation, from_step in machine.state.lineage.chain:
            lineage.begin(generation, from_step)
        generations += _generations(machine, events)
    last = max(machines[-1].state.step, machines[-1].options.first_step)
    options = machines[0].options
    span = Span(first=0, last=last, global_batch=job.train.global_batch)
    own = replace(span, first=_origin_step(options.origin))
    amendments = machines[-1].amendments
    losses = [record.did.loss if record else None for record in ledger.trained(lineage, span)]
    told: dict[str, Any] = plain(
        {
            "status": status,
            "steps": last,
            "final_loss": losses[-1] if losses else None,
            "losses": losses,
            "samples": asdict(ledger.samples(lineage, own, _expected_digests(job, amendments))),
            "generations": generations,
        }
    )
    return told


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


def _origin_step(origin: str) -> int:
    """Up to which step another run has trained, from which this one branched off."""
    ref = parse_name(origin.rpartition("/")[2])
    return ref.step if ref else 0


def _expected_digests(job: Job, amendments: Amendments) -> Callable[[int], str]:
    """The digest that each step must have, from the order of the data alone."""
    num_rows = Manifest.load(Path(job.data.dir)).num_rows
    parsed = cache(parse_skips)

    def expected(step: int) -> str:
        return expected_digest(
            step,
            global_batch=job.train.global_batch,
            num_rows=num_rows,
            seed=job.job.seed,
            skips=parsed(job.at(step, amendments).data.skip),
        ).hex()

    return expected
