"""The commands that change which nodes a live run uses, and how they share its model."""

from pathlib import Path
from typing import Annotated

import typer

import remesh
from remesh.orchestrator.user_text import user_path

SCALE_EXAMPLES = """\b
Examples:
remesh scale examples/tiny.toml --nodes 1
remesh scale runs/tiny --nodes 3
remesh scale runs/tiny --layout tp=2
remesh scale runs/tiny --layout dp=2,pp=auto
remesh scale runs/tiny --layout auto
"""
DRAIN_EXAMPLES = """\b
Examples:
remesh drain 127.0.0.3
remesh drain 127.0.0.3-1f2e3d --run runs/tiny
"""

app = typer.Typer(rich_markup_mode=None)

Through = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="Ask through the head's job server, http://HOST:8265, from beyond the cluster.",
    ),
]


@app.command(epilog=SCALE_EXAMPLES)
def scale(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|JOB", parser=user_path, help="A run's folder or its job file."
        ),
    ],
    *,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes that the run is to use.")] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="DEGREES",
            help="Degrees of dp, pp, cp, ep or tp, such as tp=2,pp=2; auto for those of the job.",
        ),
    ] = None,
    address: Through = None,
) -> int:
    """Have a live run use more nodes or fewer, or share its model in another way.

    With --nodes, within elastic.min_nodes and elastic.max_nodes: whole nodes leave at a step
    boundary, the newest first and the head last.

    With --layout the run goes on at a step boundary as if its job said so, in the same processes.
    Degrees that are not named stay as they are. It holds until they are given back with auto.
    """
    typer.echo(remesh.attach(target, address=address).scale(nodes, layout=layout))
    return 0


@app.command(epilog=DRAIN_EXAMPLES)
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name or its address.")],
    *,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR|JOB",
            parser=user_path,
            help="The run that is to leave it [default: newest].",
        ),
    ] = None,
    address: Through = None,
) -> int:
    """Have a live run leave a node at the next step boundary, so that it can be taken away."""
    typer.echo(remesh.attach(run, address=address).drain(node))
    return 0
