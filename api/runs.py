"""Runs from Python: hand one to a cluster, look at one by its folder, have it stop or change.

The command line calls the same functions. Nothing heavy is loaded before it is used.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from remesh.orchestrator.job.driver_words import is_over
from remesh.orchestrator.job.job import Job, load_job, parse_job, read_job_file
from remesh.orchestrator.job.job_text import text_of
from remesh.orchestrator.job.submission import Submission, check_id, id_stem
from remesh.orchestrator.plan.wish import parted
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import given_path

if TYPE_CHECKING:
    from remesh.actors.jobs.cluster_jobs import Attempt, Jobs
    from remesh.actors.run.reach import Answer

RUNS = Path("runs")
POLL_S = 1.0

GivenPath = str | PathLike[str]
Pause = Callable[[float], None]
Emit = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class AttachedRun:
    """A run by its folder, alive or not: from its live controller, else from its journal."""

    folder: Path

    def status(self) -> dict[str, Any]:
        """Where it stands, as plain JSON values. Raises: UserError if there is no run."""
        from remesh.actors.run.status import read_status  # noqa: PLC0415 - loads what it needs

        return read_status(self.folder)

    def events(self) -> list[dict[str, Any]]:
        """What was decided and why, oldest first: `at_s` and `text`. Raises as status."""
        from remesh.actors.run.status import read_events  # noqa: PLC0415

        return read_events(self.folder)

    def metrics(self) -> list[dict[str, Any]]:
        """A row for each step that the run stands on: step, loss, grad_norm, lr, tokens, step_s.

        A loss or norm that is not finite is NaN or infinite here. Raises as status.
        """
        from remesh.actors.history.trained_steps import rows_of  # noqa: PLC0415

        return rows_of(self.folder)

    def losses(self) -> list[float]:
        """The loss of each step that the run stands on. Raises as status."""
        return [row["loss"] for row in self.metrics()]

    def scale(self, nodes: int | None = None, *, layout: str | None = None) -> str:
        """Have the live run use so many nodes, or other degrees; its answer in a sentence.

        A `layout` is a text such as "tp=2,pp=2", or "auto" for what its job says. Raises: UserError
        if it refuses, UnreachableError if it is not there.
        """
        return self._tell(*_scaled(nodes, layout))

    def drain(self, node: str) -> str:
        """Have the live run leave a node at the next step boundary. Raises as scale."""
        return self._tell("/drain", {"node": node})

    def wait(self, *, pause: Pause = time.sleep) -> dict[str, Any]:
        """The status of the run once it has ended, or has lost its controller."""
        while not is_over(status := self.status()):
            pause(POLL_S)
        return status

    def stop(self, emit: Emit | None = None) -> str:
        """Its last word once it has ended, saved at a step boundary; with or without a driver.

        What happens meanwhile goes to `emit`. Raises: UserError if it was not alive,
        UnreachableError if nobody answers, RemeshError if it does not stop.
        """
        from remesh.actors.run.stop_wish import stop_run  # noqa: PLC0415

        word = stop_run(self.folder, emit or _nowhere)
        if word is None:
            raise UserError(f"{self.folder}: no run is alive here")
        return word

    def _tell(self, path: str, wish: Mapping[str, Any]) -> str:
        from remesh.actors.run.status import tell_run  # noqa: PLC0415

        return tell_run(self.folder, path, wish)


@dataclass(frozen=True, slots=True)
class DistantRun:
    """A run that is asked by a small job at its cluster, from beyond the cluster's network.

    `target` is the id of its submission, its job file, or its folder there.
    """

    server: "Jobs" = field(repr=False)
    target: Path | None

    def status(self) -> dict[str, Any]:
        """Likewise, as it is seen there. Raises: UserError, UnreachableError."""
        from remesh.actors.jobs.questions import WHOLE_STATUS  # noqa: PLC0415
        from remesh.actors.run.reach import Reached  # noqa: PLC0415

        answer = self._asked(WHOLE_STATUS)
        assert isinstance(answer, Reached)
        return dict(answer.answer)

    def scale(self, nodes: int | None = None, *, layout: str | None = None) -> str:
        return self._tell(*_scaled(nodes, layout))

    def drain(self, node: str) -> str:
        return self._tell("/drain", {"node": node})

    def _tell(self, path: str, wish: dict[str, Any]) -> str:
        from remesh.actors.run.status import text_from  # noqa: PLC0415

        return text_from(self._asked(path, wish), str(self.target))

    def _asked(self, path: str, wish: dict[str, Any] | None = None) -> "Answer":
        from remesh.actors.jobs.questions import ask_by_job  # noqa: PLC0415
        from remesh.actors.jobs.run_states import named_run  # noqa: PLC0415

        question = named_run(self.server, self.target, path, wish)
        (answer,) = ask_by_job(self.server, [question], _nowhere)
        return answer


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """A job on a cluster. Each method raises UnreachableError if nobody answers there.

    `begun` is how it was put there, or found.
    """

    server: "Jobs" = field(repr=False)
    begun: "Attempt"

    @property
    def id(self) -> str:
        return self.begun.submission.id

    def status(self) -> dict[str, Any]:
        """Where its newest attempt stands: status, attempt, started_s, message."""
        attempt = self.attempt()
        job = attempt.job
        return {
            "id": self.id,
            "status": job.status,
            "attempt": attempt.submission.attempt,
            "started_s": job.started_s,
            "message": job.message,
        }

    def wait(self, emit: Emit | None = None) -> int:
        """The exit code of the job once it has ended; what its driver writes goes to `emit`."""
        from remesh.actors.jobs.job_logs import follow  # noqa: PLC0415

        return follow(self.server, self.attempt().job.ray_id, emit or _nowhere).code

    def stop(self, emit: Emit | None = None) -> str:
        """Its last word once its run has stopped at a step boundary, saved, and no driver is left.

        What happens meanwhile goes to `emit`.
        """
        from remesh.actors.jobs.run_states import stop_submission  # noqa: PLC0415

        return stop_submission(self.server, self.id, emit or _nowhere)

    def logs(self) -> str:
        """What its driver has written so far."""
        from remesh.actors.jobs.job_logs import print_logs  # noqa: PLC0415

        texts: list[str] = []
        print_logs(self.server, self.attempt().job.ray_id, texts.append)
        return "".join(texts)

    def attached(self) -> AttachedRun:
        """Its run, where this machine sees the folder of it."""
        return AttachedRun(self.attempt().submission.job().run_dir)

    def attempt(self) -> "Attempt":
        """The newest attempt at it. Raises: UserError if it was deleted."""
        from remesh.actors.jobs.cluster_jobs import find  # noqa: PLC0415

        return find(self.server, self.id)


class AskedRun(Protocol):
    """A run that can be asked and told, from wherever it is."""

    def status(self) -> dict[str, Any]: ...
    def scale(self, nodes: int | None = None, *, layout: str | None = None) -> str: ...
    def drain(self, node: str) -> str: ...


def submit(
    job: Job | GivenPath,
    *,
    address: str,
    overrides: Sequence[str] = (),
    id: str | None = None,  # noqa: A002 - the word of the command line
) -> SubmittedRun:
    """Hand a job, or a job file, to the cluster whose job server is at `address`.

    An `id` that is there already starts nothing: it is attached to. Relative folders of the job
    count from the working directory. Raises: UserError, UnreachableError.
    """
    from remesh.actors.jobs.job_server import JobServer  # noqa: PLC0415

    submission = submission_of(job, overrides=overrides, id=id, folder=Path.cwd())
    return submit_to(JobServer.reach(address), submission)


def submit_to(server: "Jobs", submission: Submission) -> SubmittedRun:
    """Likewise, where the server is reached already."""
    from remesh.actors.jobs.cluster_jobs import submit  # noqa: PLC0415

    return SubmittedRun(server, submit(server, submission))


@overload
def attach(target: GivenPath | None = None, *, address: None = None) -> AttachedRun: ...
@overload
def attach(target: GivenPath | None, *, address: str | None) -> AskedRun: ...
def attach(target: GivenPath | None = None, *, address: str | None = None) -> AskedRun:
    """The run in a folder or of a job file, else the newest one under runs/.

    With an `address`, that of a job server, it is asked through its cluster, where a submission's
    id names its run too. Raises: UserError if there is none, UnreachableError.
    """
    path = None if target is None else given_path(target)
    if address is None:
        return AttachedRun(run_dir_of(path))
    from remesh.actors.jobs.job_server import JobServer  # noqa: PLC0415

    return DistantRun(JobServer.reach(address), path)


def submission_of(
    job: Job | GivenPath,
    *,
    overrides: Iterable[str] = (),
    id: str | None = None,  # noqa: A002
    folder: Path,
) -> Submission:
    """The first attempt at a job; without an `id` one is made from its name.

    Raises: UserError for a job that is wrong, or an id.
    """
    from remesh.actors.jobs.inside_job import check_folders  # noqa: PLC0415

    given = tuple(overrides)
    if isinstance(job, Job):
        text, source = text_of(job), job.name
    else:
        path = given_path(job)
        text, source = read_job_file(path), str(path)
    made = f"{id_stem(parse_job(text, name=source, overrides=given).name)}-{secrets.token_hex(3)}"
    submission = Submission(
        id=made if id is None else check_id(id),
        text=text,
        source=source,
        overrides=given,
        folder=str(folder.absolute()),
        home=str(Path("~").expanduser()),
    )
    check_folders(submission.job())
    return submission


def _scaled(nodes: int | None, layout: str | None) -> tuple[str, dict[str, Any]]:
    """Which wish it is, and what it says. Raises: UserError for none, two, or no layout."""
    if (nodes is None) == (layout is None):
        raise UserError("one wish at a time: --nodes N, or --layout with degrees such as tp=2,pp=2")
    if layout is None:
        return "/scale", {"nodes": nodes}
    parted(layout)
    return "/layout", {"layout": layout}


def run_dir_of(target: Path | None) -> Path:
    """The folder of a run: named by itself or by its job file, else the newest one under runs/.

    Raises: UserError if there is none.
    """
    if target is None:
        return _newest_run(RUNS)
    if target.is_file():
        return _run_dir_of_job(target)
    if not target.is_dir():
        raise UserError(
            f"{target.absolute()}: no such run; name its folder, such as runs/tiny, or a job file"
        )
    return target


def _run_dir_of_job(job: Path) -> Path:
    folder = load_job(job).run_dir
    if folder.is_dir():
        return folder
    counts = "" if folder.is_absolute() else f"; {folder} counts from the working directory"
    raise UserError(
        f"{folder.absolute()}: there is no run here{counts}; name the run's folder, or start one "
        f"with: remesh run {job}"
    )


def _newest_run(folder: Path) -> Path:
    marks = [mark for name in ("run.json", "journal*") for mark in folder.glob(f"*/{name}")]
    if not marks:
        raise UserError(f"there is no run in {folder}/; name a run's folder or its job file")
    return max(marks, key=lambda mark: mark.stat().st_mtime).parent


def _nowhere(text: str) -> None:
    del text
