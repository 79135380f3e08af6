"""The commands for jobs on a cluster that runs already, as typer reads them."""

from pathlib import Path
from typing import Annotated

import typer

from remesh.orchestrator.user_text import user_path

EXIT_CODES = """Exit codes with --wait and -f are those of the job: 0 finished, 2 user error, \
3 failed, 4 unreachable, 5 lost or repeated samples, 143 stopped."""
SUBMIT_EXAMPLES = f"""\b
Examples:
remesh submit examples/tiny.toml --address http://HOST:8265
remesh submit examples/tiny.toml --address http://HOST:8265 --id first --wait
remesh submit examples/tiny.toml --set train.steps=200

{EXIT_CODES}
"""
LS_EXAMPLES = """\b
Examples:
remesh ls --address http://HOST:8265
RAY_API_SERVER_ADDRESS=http://HOST:8265 remesh ls --json
"""
STOP_EXAMPLES = """\b
Examples:
remesh stop first --address http://HOST:8265
remesh stop runs/tiny
remesh stop examples/tiny.toml
"""
RESUME_EXAMPLES = f"""\b
Examples:
remesh resume first
remesh resume first --wait

{EXIT_CODES}
"""

app = typer.Typer(rich_markup_mode=None)

ServerAddress = Annotated[
    str | None,
    typer.Option(
        envvar="RAY_API_SERVER_ADDRESS",
        metavar="URL",
        help="The head's job server, such as http://HOST:8265; its token is in RAY_AUTH_TOKEN.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of a submission.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the job to its end.")]


@app.command(epilog=SUBMIT_EXAMPLES)
def submit(
    job: Annotated[
        Path, typer.Argument(metavar="JOB", parser=user_path, help="The job file (TOML).")
    ],
    *,
    address: ServerAddress = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job file."),
    ] = None,
    submission_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="The job's id on the cluster [default: a new one]."
        ),
    ] = None,
    wait: Wait = False,
) -> int:
    """Hand a job to a running Ray cluster, which trains it without this command.

    With an id that is there already nothing is started: the command attaches to that job.
    Relative folders of the job count from the working directory, which the cluster has to see.
    """
    from remesh.cli.job_actions import SubmitRequest, require_address, submit_job  # noqa: PLC0415

    request = SubmitRequest(job=job, overrides=overrides or (), id=submission_id, wait=wait)
    return submit_job(request, require_address(address))


@app.command(epilog=LS_EXAMPLES)
def ls(
    *,
    address: ServerAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List the jobs of a cluster: where each stands, and why."""
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    from remesh.actors.jobs.job_server import JobServer  # noqa: PLC0415
    from remesh.cli.job_actions import job_rows, require_address, show_jobs  # noqa: PLC0415
    from remesh.cli.status_command import print_json  # noqa: PLC0415

    rows = job_rows(JobServer.reach(require_address(address)))
    if as_json:
        print_json(rows)
    else:
        show_jobs(Console(), rows)
    return 0


@app.command(epilog=STOP_EXAMPLES)
def stop(
    target: Annotated[
        str,
        typer.Argument(
            metavar="ID|RUN_DIR|JOB", help="The id of a submission, a run's folder or its job file."
        ),
    ],
    *,
    address: ServerAddress = None,
) -> int:
    """Stop a run at the next step boundary, saved, and wait until it has; it can be resumed.

    It stops without its driver too, and before a driver that is still pending has taken it up.
    """
    from remesh.cli.job_actions import stop_target  # noqa: PLC0415 - keeps --help fast

    return stop_target(target, address)


@app.command(epilog=RESUME_EXAMPLES)
def resume(submission_id: Id, *, address: ServerAddress = None, wait: Wait = False) -> int:
    """Go on with a job that was stopped, has failed, or has lost its driver: the same curve."""
    from remesh.cli.job_actions import require_address, resume_job  # noqa: PLC0415 - keeps --help fast

    return resume_job(submission_id, require_address(address), wait=wait)


@app.command(hidden=True)
def drive() -> int:
    """Be the driver of a submission: this is how a submitted job runs on the cluster."""
    from remesh.cli.submitted import drive_submission  # noqa: PLC0415 - keeps --help fast

    return drive_submission()
