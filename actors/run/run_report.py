"""What a run has done over all its starts, as far as its journals prove it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_files import Damage, Journal
from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.step_rows import StepRows
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.told import status_of
from remesh.data.row_hashes import expected_digests
from remesh.data.skips import Skips, parse_skips
from remesh.orchestrator.accounts.ledger import Span
from remesh.orchestrator.accounts.plain_values import plain
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.events import Event, StepsDone, WorkerParked, WorkerReady
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import Member
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.job import Job
from remesh.parallel.state.root_manifest import parse_name


def report_of(folder: RunFolder, job: Job, *, status: str) -> dict[str, Any]:
    """`losses` has one for each step that the run stands on; null for one that was not finite or
    that no journal proves. The latter are `unproven_steps`, and `damage` says why.

    Cost: reads every journal once; some fifty microseconds a step, and sixty bytes.
    """
    history = read_history(folder.path)
    account = RunAccount(job)
    for start in history.starts:
        account.take(start)
    return as_report(account, folder, status=status, damage=history.damage)


def as_report(
    account: "RunAccount", folder: RunFolder, *, status: str, damage: Sequence[Damage] = ()
) -> dict[str, Any]:
    """What an account that is complete comes to, as plain JSON values."""
    saved = max((state.step for state in folder.checkpoints()), default=0)
    wrong = [str(one) for one in damage]
    report: dict[str, Any] = plain({"status": status, **account.told(saved), "damage": wrong})
    return report


class RunAccount:
    """What the starts of a run come to, folded one event after the other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._expected = _ExpectedTexts(job)
        self._rows = StepRows()
        self._lineage = Lineage()
        self._proven: dict[int, int] = {}  # by generation, up to which step none can be missing
        self._generations: list[dict[str, Any]] = []
        self._origin: str | None = None
        self._from_steps: dict[int, int] = {}  # by generation
        self._last = 0
        self._life: _StartLife | None = None

    @property
    def num_bytes(self) -> int:
        """What the steps take of memory."""
        return self._rows.num_bytes

    def take(self, start: Journal) -> None:
        """One more start of the run."""
        self.begin(start.options)
        for _, event, now_s in start.handled():
            self.handle(event, now_s)

    def begin(self, options: Options) -> None:
        """What is handled from now on happens in one more start of the run."""
        self._end()
        self._life = _StartLife(Controller(options))
        if self._origin is None:
            self._origin = options.origin

    def handle(self, event: Event, now_s: float) -> None:
        assert self._life is not None, "nothing happens before a start"
        self._life.handle(event, now_s)
        machine = self._life.machine
        if machine.state.generations:
            self._note_generation(machine)
        if isinstance(event, StepsDone | WorkerParked):
            from_step = self._from_steps.get(event.generation)
            if from_step is not None:
                expected = self._expected.at(machine.amendments)
                self._rows.note(event.generation, from_step, event.records, expected)

    def told(self, saved: int) -> dict[str, Any]:
        """All of it, of a run that has a checkpoint of step `saved`. Nothing is handled later."""
        self._end()
        chain, last = self._lineage.chain, max(self._last, saved)
        first = _step_of(self._origin or "")
        unrecorded = self._rows.unrecorded(chain, last)
        unproven = [step for step in unrecorded if step > first and not self._is_proven(step)]
        span = Span(
            first=first,
            last=last,
            global_batch=self._job.train.global_batch,
            unproven=frozenset(unproven),
        )
        losses = self._rows.losses(chain, last)
        return {
            "steps": last,
            "final_loss": losses[-1] if losses else None,
            "losses": losses,
            "samples": asdict(self._rows.samples(chain, span)),
            "unproven_steps": list(_ranges(unproven)),
            "generations": self._generations,
        }

    def _note_generation(self, machine: Controller) -> None:
        """Before a word of a start counts: whether it goes on from those before it."""
        chain, before = machine.state.lineage.chain, self._lineage.chain
        if before and chain and chain[0][0] <= before[-1][0]:
            # Its numbers do not go on from these: it knew nothing of them, nor do its steps.
            self._rows.clear()
            self._from_steps.clear()
            self._lineage = Lineage()
        self._from_steps[machine.state.current.generation] = machine.state.current.from_step

    def _end(self) -> None:
        """Nothing more happens in the start that was the newest."""
        if self._life is None:
            return
        machine = self._life.machine
        self._last = max(machine.state.step, machine.options.first_step)
        for generation, from_step in machine.state.lineage.chain:
            self._lineage.begin(generation, from_step)
            self._proven[generation] = machine.state.step
        self._generations += self._life.generations()
        self._life = None

    def _is_proven(self, step: int) -> bool:
        """Whether the journals would hold a record of the step if it had been made."""
        owner = self._lineage.owner(step)
        return owner is not None and step <= self._proven[owner]


class _StartLife:
    """The machine of a start, and what it does not remember for long of each generation."""

    def __init__(self, machine: Controller) -> None:
        self.machine = machine
        self._meshes: dict[int, tuple[Member, ...]] = {}
        self._pids: dict[str, int] = {}

    def handle(self, event: Event, now_s: float) -> None:
        machine = self.machine
        machine.handle(event, now_s)
        if isinstance(event, WorkerReady):
            self._pids[event.worker] = event.pid
        if machine.state.generations:
            life = machine.state.current
            self._meshes[life.generation] = life.members

    def generations(self) -> list[dict[str, Any]]:
        """Each generation with its members and their processes."""
        described: list[dict[str, Any]] = status_of(view_of(self.machine))["generations"]
        for entry, life in zip(described, self.machine.state.generations, strict=True):
            entry["members"] = [
                {
                    "rank": m.rank,
                    "local_rank": m.local_rank,
                    "worker": m.worker,
                    "node": m.node,
                    "pid": self._pids[m.worker],
                }
                for m in self._meshes[life.generation]
            ]
        return described


class _ExpectedTexts:
    """The digest that each step must have, from the order of the data and the rows as built."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._digests = expected_digests(
            Path(job.data.dir), global_batch=job.train.global_batch, seed=job.job.seed
        )
        self._parsed: dict[tuple[str, ...], Skips] = {}

    def at(self, amendments: Amendments) -> Callable[[int], str]:
        """With what these put in force from a step on."""
        skip = None if any(a.key == "data.skip" for a in amendments) else self._job.data.skip

        def expected(step: int) -> str:
            texts = self._job.at(step, amendments).data.skip if skip is None else skip
            if texts not in self._parsed:
                self._parsed[texts] = parse_skips(texts)
            return self._digests.of(step, self._parsed[texts]).hex()

        return expected


def _ranges(steps: Sequence[int]) -> Iterator[str]:
    """Such as "7..12", "20"."""
    first = 0
    for index, step in enumerate(steps):
        if index + 1 == len(steps) or steps[index + 1] != step + 1:
            yield str(step) if first == index else f"{steps[first]}..{step}"
            first = index + 1


def _step_of(origin: str) -> int:
    """Up to which step another run has trained, from which this one branched off."""
    ref = parse_name(origin.rpartition("/")[2])
    return ref.step if ref else 0
