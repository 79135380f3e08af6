"""`remesh submit`, `ls`, `logs`, `stop` and `resume`: jobs on a cluster that runs already."""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remesh.actors.jobs import cluster_jobs as jobs
from remesh.actors.jobs.cluster_jobs import Attempt, Jobs, RayJob
from remesh.actors.jobs.job_logs import follow, print_logs, progress_of
from remesh.actors.jobs.job_server import JobServer
from remesh.actors.jobs.questions import STOP_AND_WAIT, Question, ask_by_job, ask_here
from remesh.actors.jobs.run_states import run_states, stop_submission
from remesh.actors.run.reach import Answer, Gone, Reached, Unreachable
from remesh.actors.run.status import read_status
from remesh.cli.outputs import go_on_unheard
from remesh.cli.screen.said import dated_text
from remesh.orchestrator.job.cautions import cautions
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UnreachableError, UserError
from remesh.orchestrator.user_text import user_path
from remesh.runs import run_dir_of, submit

COLUMNS = ("id", "name", "status", "run", "step", "started", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """What stood on the command line. Without an `id` one is made from the job's name."""

    job: Path
    overrides: Sequence[str] = ()
    id: str | None = None
    wait: bool = False


def submit_job(request: SubmitRequest, address: str) -> int:
    for caution in cautions(load_job(request.job, request.overrides)):
        _say(f"warning: {caution}")
    run = submit(request.job, address=address, overrides=request.overrides, id=request.id)
    _say(f"{run.id} {'submitted' if run.begun.new else _as_it_is(run.begun)}")
    return _go_on(run.server, run.begun, address, wait=request.wait)


def resume_job(submission_id: str, address: str, *, wait: bool) -> int:
    server = JobServer.reach(address)
    attempt = jobs.resume(server, submission_id)
    number = attempt.submission.attempt
    _say(f"{submission_id} {f'resumed: attempt {number}' if attempt.new else _as_it_is(attempt)}")
    return _go_on(server, attempt, address, wait=wait)


def stop_target(target: str, address: str | None) -> int:
    """Stops a submission, by its id, or a run, by its folder or job file; says its last word."""
    path = user_path(target)
    if _is_a_run(target, path):
        _say(f"{target} {_stop_run(path, address, partial(_say_of, target))}")
        return 0
    server = JobServer.reach(address_for(target, address))
    _say(f"{target} {stop_submission(server, target, partial(_say_of, target))}")
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
    attempts = jobs.attempts(server)
    states = run_states(server, attempts)
    return [_row(server, attempt, states.get(attempt.submission.id)) for attempt in attempts]


def show_jobs(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        step = "-" if row["step"] is None else f"{row['step']}/{row['steps']}"
        cells = {**row, "started": dated_text(row["started_s"]), "step": step}
        table.add_row(*(escape(str(cells[column])) for column in COLUMNS))
    console.print(table)


def _go_on(server: Jobs, attempt: Attempt, address: str, *, wait: bool) -> int:
    if wait:
        go_on_unheard()
        return _follow(server, attempt, address)
    if not attempt.job.ended:
        _say(f"follow it with: {_command('logs', attempt, address)} -f")
    return 0


def _follow(server: Jobs, attempt: Attempt, address: str) -> int:
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


def _is_a_run(target: str, path: Path) -> bool:
    return path.exists() or len(path.parts) != 1 or Path(target).suffix == ".toml"


def _stop_run(target: Path, address: str | None, say: Callable[[str], object]) -> str:
    """The last word of a run here, or where the job server is if it cannot be reached from here."""
    run_dir = run_dir_of(target)
    question = Question(run_dir=str(run_dir.absolute()), path=STOP_AND_WAIT)
    try:
        answer = ask_here(question, say)
    except UnreachableError:
        if not address:
            raise
        (answer,) = ask_by_job(JobServer.reach(address), [question], say)
    if isinstance(answer, Reached):
        return str(answer.answer)
    status = read_status(run_dir)
    return f"is not alive: {status['phase']} at step {status['step']}: {status['reason']}"


def _row(server: Jobs, attempt: Attempt, run: Answer | None) -> dict[str, Any]:
    """Of a run that does not answer, what its driver has said."""
    job = attempt.job
    live = run.answer if isinstance(run, Reached) else {}
    told = {} if live else _told_by_driver(server, job)
    return {
        "id": attempt.submission.id,
        "name": job.metadata.get("job_name", ""),
        "status": job.status,
        "run": _run_word(attempt, run),
        "attempt": attempt.submission.attempt,
        "step": live.get("step", told.get("step")),
        "steps": live.get("steps", _steps_of(attempt)),
        "started_s": job.started_s,
        "reason": live.get("reason") or told.get("reason") or job.message.partition("\n")[0],
    }


def _told_by_driver(server: Jobs, job: RayJob) -> dict[str, Any]:
    # Of a failed job the cluster tells the last lines by itself.
    text = job.message if job.status == "failed" else server.last_lines(job.ray_id)
    progress = progress_of(text)
    return {"step": progress.step, "reason": progress.reason}


def _run_word(attempt: Attempt, run: Answer | None) -> str:
    """What the run does, beside its driver."""
    match run:
        case Reached(answer=status) if attempt.job.ended and not status["ended"]:
            return "orphaned"
        case Reached(answer=status):
            return str(status["phase"])
        case Unreachable():
            return "unreachable"
        case Gone() if not attempt.job.ended:
            return "none"
        case Gone(died=True):
            return "gone"
        case Gone() | None:
            return "over"
        case _:
            assert_never(run)


def _steps_of(attempt: Attempt) -> int | None:
    try:
        return attempt.submission.job().train.steps
    except UserError:  # a job file of another version
        return None


def _say_of(name: str, text: str) -> None:
    _say(f"{name}: {text}")


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


def address_for(target: str, address: str | None) -> str:
    """Where to ask for a submission, if it is one: there is no run of this name here."""
    if not address:
        raise UserError(
            f"{target}: no such run here; give a run's folder or a job file, or for a submission "
            f"--address http://HOST:8265"
        )
    return address


def require_address(address: str | None) -> str:
    if not address:
        raise UserError(
            "no cluster: give --address http://HOST:8265, or set RAY_API_SERVER_ADDRESS"
        )
    return address
