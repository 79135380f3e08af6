"""`remesh logs` and `remesh stacks`: what a run's processes have written, and where they stand."""

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remesh.cli.job_commands import EXIT_CODES, ServerAddress
from remesh.orchestrator.user_errors import UnreachableError, UserError
from remesh.orchestrator.user_text import user_path

if TYPE_CHECKING:
    from remesh.actors.jobs.cluster_jobs import Jobs

LOGS_EXAMPLES = f"""\b
Examples:
remesh logs runs/tiny
remesh logs runs/tiny --worker worker-3
remesh logs examples/tiny.toml -f
remesh logs first --address http://HOST:8265 -f

{EXIT_CODES}
"""
STACKS_EXAMPLES = """\b
Examples:
remesh stacks
remesh stacks runs/tiny --worker worker-3
"""
STACKS_LIMIT_S = 15.0
LOST_SHOWN = 3
LINES_SHOWN = 20

app = typer.Typer(rich_markup_mode=None)

ProcessName = Annotated[
    str | None,
    typer.Option("--worker", metavar="NAME", help="One process only, such as worker-3."),
]


@app.command(epilog=LOGS_EXAMPLES)
def logs(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_DIR|JOB|ID",
            help="A run's folder or job file, or the id of a submission; default: the newest run.",
        ),
    ] = None,
    *,
    worker: ProcessName = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it to its end.")] = False,
    driver: Annotated[
        bool, typer.Option("--driver", help="TARGET is the id of a submission: print its driver's.")
    ] = False,
    address: ServerAddress = None,
) -> int:
    """Print what the processes of a run have written, or the driver of a submission.

    Of a run without --worker: each log with its last line, and the last lines of who was lost.
    Ctrl-C ends the command only.
    """
    if driver or (target is not None and _is_submission(target, address)):
        return _driver_logs(target, address, worker, follow=follow)
    from remesh.runs import run_dir_of  # noqa: PLC0415 - keeps --help fast

    run_dir = run_dir_of(None if target is None else user_path(target))
    if follow:
        return _follow(run_dir, worker)
    if worker is not None:
        from remesh.actors.run.run_logs import text_of  # noqa: PLC0415

        sys.stdout.write(text_of(run_dir, worker))
    else:
        _list(run_dir)
    return 0


@app.command(epilog=STACKS_EXAMPLES)
def stacks(
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR|JOB",
            parser=user_path,
            help="A live run's folder or its job file; default: the newest run.",
        ),
    ] = None,
    *,
    worker: ProcessName = None,
) -> int:
    """Print where each rank of a live run stands in its code, also where it hangs."""
    from remesh.actors.run.status import tell_run  # noqa: PLC0415 - keeps --help fast
    from remesh.runs import run_dir_of  # noqa: PLC0415

    wish = {} if worker is None else {"worker": worker}
    typer.echo(tell_run(run_dir_of(target), "/stacks", wish, STACKS_LIMIT_S), nl=False)
    return 0


def _is_submission(target: str, address: str | None) -> bool:
    """What is there decides. Raises: UserError if both a run and a submission have the name."""
    is_path = user_path(target).exists()
    if address is None or "/" in target:
        return not is_path and "/" not in target and not target.endswith(".toml")
    if not is_path:
        return True
    from remesh.actors.jobs.job_server import JobServer  # noqa: PLC0415 - as above

    with suppress(UnreachableError):  # then the run here is all that can be meant
        refuse_if_submitted(JobServer.reach(address), target, address)
    return False


def refuse_if_submitted(jobs: "Jobs", target: str, address: str) -> None:
    """Raises: UserError if the run of this name is a submission too, with both ways to say it."""
    from remesh.actors.jobs.cluster_jobs import attempts  # noqa: PLC0415 - as above

    if any(attempt.submission.id == target for attempt in attempts(jobs)):
        raise UserError(
            f"{target} is a run here and a submission on the cluster at {address}; write "
            f"./{target} for the run, or --driver {target} for what the submission's driver wrote"
        )


def _driver_logs(
    target: str | None, address: str | None, worker: str | None, *, follow: bool
) -> int:
    from remesh.cli.job_actions import address_for, show_logs  # noqa: PLC0415 - as above

    if target is None:
        raise UserError("--driver: give the id of a submission; remesh ls names them")
    if worker is not None:
        raise UserError(
            f"--worker {worker}: {target} is a submission, and the logs of its workers lie in its "
            f"run's folder; give that folder or the job file instead"
        )
    return show_logs(target, address_for(target, address), to_its_end=follow)


def _list(run_dir: Path) -> None:
    from remesh.actors.run.run_logs import lost_workers, run_logs  # noqa: PLC0415 - as above
    from remesh.cli.screen.said import dated_text  # noqa: PLC0415

    found = run_logs(run_dir)
    width = max((len(log.process) for log in found), default=0)
    for log in found:
        moment = dated_text(log.written_s)
        typer.echo(f"{log.process:<{width}}  {moment}  {log.num_bytes:>7,} bytes  {log.last_line}")
    if not found:
        typer.echo(f"{run_dir}: none of its processes has written anything")
    lost = lost_workers(run_dir, LINES_SHOWN)
    for one in lost[-LOST_SHOWN:]:
        typer.echo(f"\n{one.worker} was lost: {one.cause}")
        typer.echo(one.last_lines or "it has written nothing")
    if len(lost) > LOST_SHOWN:
        typer.echo(
            f"\nthe last {LOST_SHOWN} of {len(lost)} that were lost; others by --worker NAME"
        )


def _follow(run_dir: Path, worker: str | None) -> int:
    from remesh.actors.run.run_logs import follow_logs, text_of  # noqa: PLC0415 - as above

    if worker is not None:
        text_of(run_dir, worker)

    def emit(process: str, text: str) -> None:
        lines = text.splitlines(keepends=True)
        sys.stdout.writelines(lines if worker else [f"{process}: {line}" for line in lines])
        sys.stdout.flush()

    try:
        follow_logs(run_dir, worker, emit)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0
