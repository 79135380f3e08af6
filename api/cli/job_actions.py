"""`remesh submit`, `ls`, `logs`, `stop` and `resume`: jobs on a cluster that runs already."""

import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remesh.actors.jobs import cluster_jobs as jobs
from remesh.actors.jobs.cluster_jobs import Attempt, Jobs
from remesh.actors.jobs.job_logs import follow, print_logs, progress_of
from remesh.actors.jobs.job_server import JobServer
from remesh.cli.outputs import go_on_unheard
from remesh.orchestrator.job.job import load_job, read_job_file
from remesh.orchestrator.job.submission import Submission, check_id, id_stem
from remesh.orchestrator.user_errors import UserError

COLUMNS = ("id", "name", "status", "step", "started", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """What stood on the command line. Without an `id` one is made from the job's name."""

    job: Path
    overrides: Sequence[str] = ()
    id: str | None = None
    wait: bool = False


def submit_job(request: SubmitRequest, address: str) -> int:
    submission = submission_of(request, Path.cwd())
    server = JobServer.reach(address)
    attempt = jobs.submit(server, submission)
    _say(f"{submission.id} {'submitted' if attempt.new else _as_it_is(attempt)}")
    return _go_on(server, attempt, address, wait=request.wait)


def resume_job(submission_id: str, address: str, *, wait: bool) -> int:
    server = JobServer.reach(address)
    attempt = jobs.resume(server, submission_id)
    number = attempt.submission.attempt
    _say(f"{submission_id} {f'resumed: attempt {number}' if attempt.new else _as_it_is(attempt)}")
    return _go_on(server, attempt, address, wait=wait)


def stop_job(submission_id: str, address: str) -> int:
    server = JobServer.reach(address)
    before = jobs.find(server, submission_id)
    if before.job.ended:
        _say(f"{submission_id} {_as_it_is(before)}")
        return 0
    _say(f"{submission_id}: stopping at the next step boundary")
    attempt = jobs.stop(server, submission_id)
    reason = progress_of(server.logs(attempt.job.ray_id)).reason
    _say(f"{submission_id} {reason or attempt.job.status}")
    return 0


def show_logs(submission_id: str, address: str, *, to_its_end: bool) -> int:
    server = JobServer.reach(address)
    attempt = jobs.find(server, submission_id)
    if to_its_end:
        return _follow(server, attempt, address)
    print_logs(server, attempt.job.ray_id, _write)
    return 0


def job_rows(server: Jobs) -> list[dict[str, Any]]:
    """A row for each submission, oldest first."""
    return [_row(server, attempt) for attempt in jobs.attempts(server)]


def show_jobs(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["started_s"]))
        cells = {**row, "started": moment, "step": "-" if row["step"] is None else row["step"]}
        table.add_row(*(escape(str(cells[column])) for column in COLUMNS))
    console.print(table)


def submission_of(request: SubmitRequest, folder: Path) -> Submission:
    """Raises: UserError for a job file that is wrong, or an id."""
    job = load_job(request.job, request.overrides)
    made = f"{id_stem(job.name)}-{secrets.token_hex(3)}"
    return Submission(
        id=made if request.id is None else check_id(request.id),
        text=read_job_file(request.job),
        source=str(request.job),
        overrides=tuple(request.overrides),
        folder=str(folder.absolute()),
        home=str(Path("~").expanduser()),
    )


def _go_on(server: JobServer, attempt: Attempt, address: str, *, wait: bool) -> int:
    if wait:
        go_on_unheard()
        return _follow(server, attempt, address)
    if not attempt.job.ended:
        _say(f"follow it with: {_command('logs', attempt, address)} -f")
    return 0


def _follow(server: JobServer, attempt: Attempt, address: str) -> int:
    """The exit code of the job. Ctrl-C ends the command only."""
    try:
        job = follow(server, attempt.job.ray_id, _write)
    except KeyboardInterrupt:
        _say(f"the job goes on; stop it with: {_command('stop', attempt, address)}")
        return 128 + signal.SIGINT
    sys.stdout.flush()
    if job.status == "failed" and job.exit_code is None:
        _say(f"{attempt.submission.id} has lost its driver: {job.message.partition(chr(10))[0]}")
        _say(f"take its run up with: {_command('resume', attempt, address)}")
    else:
        _say(f"{attempt.submission.id} {job.status}")
    return job.code


def _row(server: Jobs, attempt: Attempt) -> dict[str, Any]:
    job = attempt.job
    # Of a failed job the cluster tells the last lines by itself.
    told = job.message if job.status == "failed" else server.logs(job.ray_id)
    progress = progress_of(told)
    return {
        "id": attempt.submission.id,
        "name": job.metadata.get("job_name", ""),
        "status": job.status,
        "attempt": attempt.submission.attempt,
        "step": progress.step,
        "started_s": job.started_s,
        "reason": progress.reason or job.message.partition("\n")[0],
    }


def _as_it_is(attempt: Attempt) -> str:
    return f"is {attempt.job.status}, attempt {attempt.submission.attempt}"


def _command(name: str, attempt: Attempt, address: str) -> str:
    return f"remesh {name} {attempt.submission.id} --address {address}"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say(text: str) -> None:
    """Beside the job's own lines, which alone go to standard output."""
    sys.stderr.write(f"{text}\n")


def require_address(address: str | None) -> str:
    if not address:
        raise UserError(
            "no cluster: give --address http://HOST:8265, or set RAY_API_SERVER_ADDRESS"
        )
    return address
