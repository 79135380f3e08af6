"""The `remesh` command: its options, and the exit code and line that an error ends in.

0 finished, 2 user error, 3 failed, 4 unreachable, 5 samples were lost or repeated, 129 hung up,
130 interrupted, 141 unread,
143 terminated.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import remesh
from remesh.cli import checkpoint_commands as checkpoint
from remesh.cli import job_commands, log_commands, node_commands
from remesh.cli.checkpoint_commands import AsJson
from remesh.cli.node_commands import Through
from remesh.cli.outputs import standard_streams
from remesh.data.data_error import DataError
from remesh.orchestrator.user_errors import RemeshError, UserError
from remesh.orchestrator.user_text import masked, path_text, user_path
from remesh.parallel.plan.errors import CheckpointError, LayoutError

RUN_EXAMPLES = """\b
Examples:
remesh run examples/tiny.toml
remesh run examples/tiny.toml --set train.steps=200
remesh run examples/tiny.toml --from-step 40 --set train.lr=0.001
remesh run examples/tiny.toml --fresh --kill worker@20 --kill node@40 --report r.json
"""
PLAN_EXAMPLES = """\b
Examples:
remesh plan examples/tiny.toml
remesh plan examples/sharded.toml --workers 3
remesh plan examples/tiny.toml --set elastic.max_workers=8 --json
remesh plan --schedule zb-h1 --pp 4 --microbatches 8
remesh plan --schedule interleaved --virtual-stages 2 --costs 2,2,2
"""
SCHEMA_EXAMPLES = """\b
Examples:
remesh schema > job.schema.json
"""
STATUS_EXAMPLES = """\b
Examples:
remesh status
remesh status runs/tiny --json
remesh status --watch
remesh status first --address http://HOST:8265
"""
EVENTS_EXAMPLES = """\b
Examples:
remesh events examples/tiny.toml
remesh events runs/tiny --json
remesh events -f
"""
BUILD_EXAMPLES = """\b
Examples:
remesh data build python-stdlib --out runs/data/python-stdlib-128 --seq-len 128
remesh data build texts/ --out runs/data/texts --seq-len 1024
remesh data build posts.jsonl.gz --text-key content --out runs/data/posts --seq-len 1024
"""

app = typer.Typer(
    name="remesh",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Build datasets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(checkpoint.app, name="checkpoint")
app.command(epilog=checkpoint.BRANCH_EXAMPLES)(checkpoint.branch)
app.add_typer(job_commands.app)
app.add_typer(log_commands.app)
app.add_typer(node_commands.app)

if TYPE_CHECKING:
    from rich.console import Console

RunTarget = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN_DIR|JOB",
        parser=user_path,
        help="A run's folder or its job file; default: the newest run.",
    ),
]


@app.callback()
def options(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Trains large language models on a Ray cluster that changes under it."""
    if version:
        typer.echo(f"remesh {remesh.__version__}")
        raise typer.Exit


@app.command(epilog=RUN_EXAMPLES)
def run(  # noqa: PLR0913 - each parameter is an option of the command
    job: Annotated[
        Path, typer.Argument(metavar="JOB", parser=user_path, help="The job file (TOML).")
    ],
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job file."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Nodes of the local cluster [default: 2].")
    ] = None,
    workers_per_node: Annotated[
        int | None, typer.Option(min=1, max=64, help="Workers on each of them [default: 2].")
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT@STEP", help="Kill a worker or a node as a step begins."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND@PLACE",
            help="Strike once, at step=, generation=, rank= and operation=: "
            "kill, freeze, hang, slow, disconnect, disk-full, storage-stands-still, kill-node, "
            "kill-controller, standstill.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=user_path, help="Write a report of the run as JSON."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; set the run aside that is there.")
    ] = False,
    from_step: Annotated[
        int | None,
        typer.Option(metavar="STEP", min=0, help="Go back to the checkpoint of this step."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster instead of a local one.")
    ] = None,
) -> int:
    """Train a job to its end, or take up its run where it stopped.

    Learning rate, clipping, decay and skipped batches may have other values then, which hold from
    the next step on.

    Ctrl-C stops at the next step boundary and saves; a second Ctrl-C stops at once. A terminal
    that is closed counts as one Ctrl-C; output that nobody takes stops nothing.
    """
    from remesh.cli.run_command import RunRequest, run_job  # noqa: PLC0415 - keeps --help fast

    return run_job(
        RunRequest(
            job=job,
            overrides=overrides or (),
            nodes=nodes,
            workers_per_node=workers_per_node,
            kills=kill or (),
            faults=fault or (),
            report=report,
            fresh=fresh,
            from_step=from_step,
            address=address,
        )
    )


@app.command(epilog=PLAN_EXAMPLES)
def plan(  # noqa: PLR0913 - each parameter is an option of the command
    job: Annotated[Path | None, typer.Argument(metavar="JOB", help="The job file (TOML).")] = None,
    *,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Show what so many workers get, and who is spare.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job file."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Draw a schedule instead of planning a job: gpipe, 1f1b, interleaved, zb-h1, "
            "dualpipe-v, or one that nothing trains by yet: pipedream, 2bw.",
        ),
    ] = None,
    pp: Annotated[
        int | None, typer.Option(min=1, max=64, help="Ranks of its pipeline [default: 4].")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(min=1, max=512, help="What goes through it [default: 8].")
    ] = None,
    virtual_stages: Annotated[
        int | None,
        typer.Option(min=2, max=16, help="Stages of a rank, if interleaved [default: 2]."),
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="F,I,W",
            help="Times of a forward, and of a backward's halves for the input and the weights "
            "[default: 1,1,1].",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the meshes that a job's run may have, and why; or a schedule. Nothing is started."""
    from remesh.cli.plan_command import (  # noqa: PLC0415 - keeps --help fast
        PlanRequest,
        ScheduleOptions,
        show_plan,
    )

    drawn = ScheduleOptions(
        schedule=schedule,
        pp=pp,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        costs=costs,
    )
    request = PlanRequest(job=job, overrides=overrides or (), workers=workers, drawn=drawn)
    show_plan(request, _console(), as_json=as_json)
    return 0


@app.command(epilog=SCHEMA_EXAMPLES)
def schema() -> int:
    """Print the JSON schema of a job file, by which editors complete and check it.

    A job file names it in its first line: #:schema job.schema.json
    """
    from remesh.orchestrator.job.job import Job  # noqa: PLC0415 - keeps --help fast

    typer.echo(json.dumps(Job.model_json_schema(), indent=1))
    return 0


@app.command(epilog=STATUS_EXAMPLES)
def status(
    target: RunTarget = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Redraw it until the run ends, or Ctrl-C.")
    ] = False,
    address: Through = None,
    as_json: AsJson = False,
) -> int:
    """Show where a run stands: speed, time left, mesh, generations and why each began."""
    from remesh.cli.status_command import show_run  # noqa: PLC0415 - keeps --help fast

    show_run(_console(), remesh.attach(target, address=address), as_json=as_json, watch=watch)
    return 0


@app.command(epilog=EVENTS_EXAMPLES)
def events(
    target: RunTarget = None,
    *,
    to_its_end: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the run to its end, or to Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """List what happened in a run, oldest first."""
    from remesh.cli.status_command import list_events  # noqa: PLC0415 - keeps --help fast

    list_events(_console(), target, as_json=as_json, to_its_end=to_its_end)
    return 0


@data_app.command("build", epilog=BUILD_EXAMPLES)
def build(
    source: Annotated[
        str,
        typer.Argument(
            parser=path_text, metavar="SOURCE", help='A folder, a file, or "python-stdlib".'
        ),
    ],
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", parser=user_path, help="The dataset's folder.")
    ],
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens in a training sequence.")],
    text_key: Annotated[
        str, typer.Option(metavar="KEY", help="The key of the text in JSON lines.")
    ] = "text",
    skip_bad_lines: Annotated[
        int, typer.Option(metavar="N", min=0, help="Leave out and count up to N bad JSON lines.")
    ] = 0,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDING", help="Read files with this ending as text too, as .html."),
    ] = None,
) -> int:
    """Build a dataset of fixed-length rows out of text.

    Text is what ends in .txt, .md, .rst or .py, and JSON lines in .jsonl or .ndjson, also behind
    .gz, .bz2 or .xz. What a folder holds besides is left out, and named.
    """
    from remesh.cli.data_commands import build_dataset  # noqa: PLC0415 - keeps --help fast
    from remesh.data.building.documents import Reading  # noqa: PLC0415

    reading = Reading(text_key=text_key, skip_bad_lines=skip_bad_lines, also=tuple(also or ()))
    build_dataset(source, out, seq_len, typer.echo, reading)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; an error is one line on standard error and an exit code."""
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    with standard_streams() as flush:
        try:
            code: int = app(args=args, prog_name="remesh", standalone_mode=False) or 0
            flush()
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the user gets a line
            return _told(error)
        except SystemExit as ended:  # so typer ends what a broken pipe of any kind has ended
            return _told(ended.__context__ or ended)
        return code


def _told(error: BaseException) -> int:
    """Says it on standard error; the exit code."""
    if os.environ.get("REMESH_TRACEBACK"):
        sys.stderr.write(masked("".join(traceback.format_exception(error))))
    text, code = _explain(error)
    if text:
        sys.stderr.write(f"remesh: {' '.join(masked(text).split())}\n")
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    """The line for the user and the exit code."""
    match error:
        case RemeshError():
            return str(error), error.exit_code
        case DataError() | LayoutError() | CheckpointError():
            return str(error), UserError.exit_code
        case typer.TyperException():
            seen = error.format_message().replace("Value error, ", "")
            return f"{seen} ({_asked(error)} --help)", UserError.exit_code
        case OSError():
            return _explain_place(error)
        case _:
            bug = "a bug in remesh; REMESH_TRACEBACK=1 shows where"
            return f"{type(error).__name__}: {error} ({bug})", RemeshError.exit_code


def _explain_place(error: OSError) -> tuple[str, int]:
    """Likewise for what a file system has said, where nobody closer has told more of it."""
    if not _stands_somewhere():
        return "the working folder is gone; change to one that is there", UserError.exit_code
    if isinstance(error, PermissionError) and error.filename:
        cure = "let this user have it, or name another place"
        return f"{error.filename}: {error.strerror}; {cure}", UserError.exit_code
    return str(error), RemeshError.exit_code


def _stands_somewhere() -> bool:
    """Whether the working folder is there: without it nothing relative can be found or made."""
    try:
        return bool(Path.cwd())
    except OSError:
        return False


def _asked(error: typer.TyperException) -> str:
    """The command whose options were meant, `remesh` if it is not known."""
    ctx = getattr(error, "ctx", None)
    return str(ctx.command_path) if ctx else "remesh"


def _console() -> "Console":
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    return Console()
