"""The commands for checkpoints: looked at, verified, written for others, read from others."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from remesh.orchestrator.user_text import place_text, user_path

LS_EXAMPLES = """\b
Examples:
remesh checkpoint ls runs/tiny
remesh checkpoint ls examples/tiny.toml --json
remesh checkpoint ls "s3://bucket/runs/tiny?region=eu-central-1"
"""
VERIFY_EXAMPLES = """\b
Examples:
remesh checkpoint verify runs/tiny
remesh checkpoint verify runs/tiny/80
"""
SHOW_EXAMPLES = """\b
Examples:
remesh checkpoint show runs/tiny
remesh checkpoint show runs/tiny/step-00000080.gen-3.start-1 --json
"""
EXPORT_EXAMPLES = """\b
Examples:
remesh checkpoint export runs/tiny --to hf out/tiny
remesh checkpoint export runs/tiny/80 --to hf out/tiny --dtype bf16
remesh checkpoint export runs/tiny/80 --to dcp out/tiny-dcp
"""
IMPORT_EXAMPLES = """\b
Examples:
remesh checkpoint import --from hf models/tinyllama job.toml
remesh checkpoint import --from dcp out/tiny-dcp job.toml --set checkpoint.dir=runs/again
remesh checkpoint import --from dcp out/averaged job.toml --key ema
"""

BRANCH_EXAMPLES = """\b
Examples:
remesh branch runs/tiny --as lower --set train.lr=0.001
remesh branch runs/tiny/40 --as without --set 'data.skip=["41..45"]'
remesh branch "s3://bucket/runs/tiny?region=eu-central-1" --as again
"""

app = typer.Typer(help="Look at, verify and convert checkpoints.", rich_markup_mode=None)


class ExportFormat(StrEnum):
    """hf: Hugging Face's types llama, qwen3 or mixtral; dcp: a torch distributed checkpoint."""

    HF = "hf"
    DCP = "dcp"


class ExportFloat(StrEnum):
    """What weights are rounded to."""

    FP32 = "fp32"
    BF16 = "bf16"


_DTYPES = {ExportFloat.FP32: "float32", ExportFloat.BF16: "bfloat16"}

_FILE_CELLS = 240  # of a line that is written to a file or a pipe: nothing is cut off there

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN[/STEP]",
        parser=place_text,
        help="A run's folder or URL, or its job file; a step is a number or a checkpoint's name.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(epilog=LS_EXAMPLES)
def ls(target: CheckpointArgument, *, as_json: AsJson = False) -> int:
    """List the checkpoints of a run, newest first."""
    from remesh.actors.checkpoints.looking import find, rows  # noqa: PLC0415 - keeps --help fast

    _show({"checkpoints": rows(find(target))}, as_json=as_json)
    return 0


@app.command(epilog=VERIFY_EXAMPLES)
def verify(target: CheckpointArgument) -> int:
    """Read every byte of a checkpoint, or of all of a run, and prove it by its hashes."""
    from remesh.actors.checkpoints.exporting import verify_all  # noqa: PLC0415 - loads torch
    from remesh.actors.checkpoints.looking import find  # noqa: PLC0415 - keeps --help fast

    verify_all(find(target), typer.echo)
    return 0


@app.command(epilog=SHOW_EXAMPLES)
def show(target: CheckpointArgument, *, as_json: AsJson = False) -> int:
    """Show what a checkpoint holds: position, job, metrics, files and tensors.

    Without a step it is the newest.
    """
    from remesh.actors.checkpoints.looking import find, shown  # noqa: PLC0415 - keeps --help fast

    _show(shown(find(target)), as_json=as_json)
    return 0


@app.command("export", epilog=EXPORT_EXAMPLES)
def export(
    target: CheckpointArgument,
    out: Annotated[
        str, typer.Argument(metavar="DIR", parser=place_text, help="An empty folder, or a new one.")
    ],
    *,
    form: Annotated[ExportFormat, typer.Option("--to", help="The format to write.")],
    dtype: Annotated[
        ExportFloat,
        typer.Option(help="Of the weights of hf; dcp is fp32, with the optimizer's state."),
    ] = ExportFloat.FP32,
) -> int:
    """Write a checkpoint as Hugging Face's or torch's, where the run itself is left as it is.

    Without a step it is the newest.
    """
    from remesh.actors.checkpoints.exporting import export as write  # noqa: PLC0415 - loads torch
    from remesh.actors.checkpoints.looking import find  # noqa: PLC0415 - keeps --help fast

    typer.echo(write(find(target), form.value, out, _DTYPES[dtype], typer.echo))
    return 0


@app.command("import", epilog=IMPORT_EXAMPLES)
def import_(
    source: Annotated[
        str, typer.Argument(metavar="DIR", parser=place_text, help="The folder with the weights.")
    ],
    job: Annotated[
        Path, typer.Argument(metavar="JOB", parser=user_path, help="The job file (TOML).")
    ],
    *,
    form: Annotated[ExportFormat, typer.Option("--from", help="The format to read.")],
    key: Annotated[
        str | None,
        typer.Option("--key", help="Which copy of the model, where the files hold several."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job file."),
    ] = None,
    new_tokenizer: Annotated[
        bool,
        typer.Option("--new-tokenizer", help="Train on tokens that these weights do not know."),
    ] = False,
) -> int:
    """Begin a run with weights from elsewhere: remesh run JOB then goes on from them.

    Only safetensors are read, and torch's distributed checkpoints as data: no pickle is ever run.

    Models are of Hugging Face's types llama, qwen3 or mixtral, with at most 65,536 tokens, plain
    rotary positions and heads of width / heads: Llama 2 and its like, TinyLlama, SmolLM2, Yi-6B and
    Mixtral 8x7B, and whatever was exported here. Llama 3 and Qwen3 as published have more tokens
    and are refused.
    """
    from remesh.actors.checkpoints.importing import begin_run, open_source  # noqa: PLC0415 - loads torch
    from remesh.actors.jobs.inside_job import check_folders  # noqa: PLC0415
    from remesh.cli.data_commands import ensure_dataset  # noqa: PLC0415
    from remesh.data.manifest import Manifest  # noqa: PLC0415
    from remesh.orchestrator.job.dataset import check_tokenizer  # noqa: PLC0415
    from remesh.orchestrator.job.job import load_job  # noqa: PLC0415

    loaded = load_job(job, overrides or ())
    check_folders(loaded)
    model = open_source(loaded, form.value, source, key)
    ensure_dataset(loaded, typer.echo)
    manifest = Manifest.load(Path(loaded.data.dir))
    check_tokenizer(loaded, manifest, chosen=new_tokenizer)
    ref = begin_run(loaded, manifest.digest, model, typer.echo)
    command = shlex.join(
        ["remesh", "run", str(job), *(f"--set={override}" for override in overrides or ())]
    )
    typer.echo(f"{loaded.run_dir} begins with {ref.name}; train it with: {command}")
    return 0


def branch(
    target: CheckpointArgument,
    *,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="The name of the new run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What changes from the next step on."),
    ] = None,
) -> int:
    """Begin another run with a checkpoint of this one, which is left as it is.

    It goes on with the optimizer's state and the position in the data, in a folder beside. Without
    a step the newest checkpoint is taken.
    """
    from remesh.actors.checkpoints.branching import branch as begin  # noqa: PLC0415 - loads torch
    from remesh.actors.checkpoints.looking import find  # noqa: PLC0415 - keeps --help fast

    typer.echo(begin(find(target), name, overrides or (), typer.echo))
    return 0


def _show(found: dict[str, object], *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    from remesh.cli.screen.shapes import show_values  # noqa: PLC0415
    from remesh.cli.status_command import print_json  # noqa: PLC0415

    if as_json:
        print_json(found)
        return
    console = Console()
    show_values(console if console.is_terminal else Console(width=_FILE_CELLS), found)
