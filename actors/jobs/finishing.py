"""What the files of a run prove of its end.

A run is finished when its last checkpoint can be read back, and what it was trained on is what its
journals prove. Both are looked at here, by the command, which has the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.kept_account import KeptAccount
from remesh.actors.run.account_tail import AccountTail
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.run_report import report_of
from remesh.data.data_error import DataError
from remesh.data.manifest import Manifest
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.landing import verify
from remesh.parallel.state.root_manifest import parse_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The files of a run that has ended, or is over in a moment.

    With a `tail` its account is folded while it is driven.
    """

    folder: RunFolder
    job: Job
    tail: AccountTail | None = None

    def read_on(self) -> None:
        """A little of what the run has done since, so that the report has less to read."""
        if self.tail:
            self.tail.read_on()

    def report(self, status: str) -> dict[str, Any]:
        """Cost: reads the journals and takes them apart, unless that has been done before."""
        kept = self._kept()
        sizes = kept.sizes() if kept else {}
        if kept and (told := kept.told()):
            return {"status": status, **told}
        folded = self.tail.report(status) if self.tail else None
        report = folded or report_of(self.folder, self.job, status=status)
        if kept and not report["damage"]:
            kept.keep({key: told for key, told in report.items() if key != "status"}, sizes)
        return report

    def _kept(self) -> KeptAccount | None:
        """None where what an account would be of cannot be told."""
        try:
            data = Manifest.load(Path(self.job.data.dir)).digest
            saved = [state.name for state in self.folder.checkpoints()]
        except (UserError, DataError, OSError):
            return None
        return KeptAccount(self.folder.path, f"{self.job.model_dump_json()}\n{data}\n{saved}")

    def flaw(self) -> str | None:
        """Why the newest checkpoint cannot be read back, None if every byte of it is proven.

        Cost: reads it.
        """
        newest = self.folder.checkpoints()[:1]
        return flaw_of(self.folder, newest[0]) if newest else "there is no checkpoint"


def proven_from(
    folder: RunFolder, checkpoints: tuple[CheckpointState, ...], steps: int
) -> tuple[tuple[CheckpointState, ...], tuple[str, ...]]:
    """Those to go on from, newest first, and what to say of newer ones.

    A run that seems to have done all its steps has to prove it. Cost: reads the checkpoint that
    ends it, and none of a run that is still to be trained. Raises: UserError if it ends in none
    that can be read.
    """
    if not checkpoints or checkpoints[0].step < steps:
        return checkpoints, ()
    flaws: list[str] = []
    for index, state in enumerate(checkpoints):
        flaw = flaw_of(folder, state)
        if flaw is None:
            return checkpoints[index:], _told(flaws, state.step)
        flaws.append(flaw)
    raise UserError(f"{flaws[0]}; none of the others can be read, or start over with --fresh")


def lost_words(folder: RunFolder) -> Iterator[str]:
    """What to say, as the run is taken up, of journals and checkpoints that are damaged or gone.

    Cost: reads the journals.
    """
    history = read_history(folder.path)
    for damage in history.damage:
        yield f"{damage}; the run goes on from its checkpoint, which needs no journal"
    kept = [state for start in history.starts if (state := start.committed())]
    told = kept[-1].step if kept else 0  # the run may have gone back behind those before it
    newest = max((state.step for state in folder.checkpoints()), default=0)
    if told > newest:
        yield f"the journal tells of a checkpoint at step {told}, and the newest is of {newest}"


def flaw_of(folder: RunFolder, state: CheckpointState) -> str | None:
    """Why a checkpoint cannot be read back, None if every byte of it is proven."""
    ref = parse_name(state.name)
    assert ref is not None
    try:
        verify(folder.guarded, ref)
    except CheckpointError as error:
        return str(error)
    return None


def _told(flaws: list[str], step: int) -> tuple[str, ...]:
    return tuple(f"{flaw}; the run goes on from step {step}" for flaw in flaws)
