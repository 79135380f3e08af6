"""`remesh plan`: the meshes that a job's run may have, before anything is started."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remesh.cli.status_command import print_json
from remesh.orchestrator.job.cautions import cautions
from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.plan.fitting import memory_of, needed_bytes, told
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.planner import (
    NodeRoom,
    RungRow,
    dealt,
    ladder_of,
    reasons,
    rows,
    rung_for,
)
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.user_text import byte_text

COLUMNS = ("", "workers", "mesh", "shards", "leaves each", "efficiency", "unit", "memory", "moves")
LEGEND = (
    "unit: workers taken together; memory: of each worker at the most, without snapshots; moves: "
    "the share of the state that changes hands as the next smaller mesh grows to this one, or this "
    "one shrinks to it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What stood on the command line. `workers` is None where it was left out."""

    job: Path
    overrides: Sequence[str] = ()
    workers: int | None = None


def plan_job(request: PlanRequest, console: Console, *, as_json: bool) -> None:
    """Raises: UserError if the job is wrong, or the workers are too few for any of its meshes."""
    job = load_job(request.job, request.overrides)
    ladder = ladder_of(job)
    picked, why = _picked(job, ladder, request.workers)
    table = list(rows(job, ladder))
    if as_json:
        print_json(_values(job, table, picked, why))
        return
    console.print(_table(job, table, picked))
    memory = f"memory of a worker of the largest mesh: {told(memory_of(job, ladder.highest))}"
    warnings = (f"warning: {line}" for line in cautions(job))
    for line in (LEGEND, memory, *why, *warnings):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _picked(job: Job, ladder: Ladder, workers: int | None) -> tuple[Rung | None, tuple[str, ...]]:
    """What so many workers get, and why; without a number what the largest mesh would do."""
    if workers is None:
        return None, (dealt(job, ladder.highest), *ladder.reasons)
    room = NodeRoom(nodes=1, places=workers)
    rung = rung_for(job, ladder, room)
    return rung, reasons(job, ladder, rung, room)


def _table(job: Job, table: Sequence[RungRow], picked: Rung | None) -> Table:
    shown = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        shown.add_column(column, no_wrap=column != "unit")
    for row in table:
        shown.add_row(">" if row.rung == picked else "", *map(str, _cells(job, row).values()))
    return shown


def _cells(job: Job, row: RungRow) -> dict[str, Any]:
    rung, unit = row.rung, row.rung.unit
    together = " on one node" if unit.on_one_node and unit.workers > 1 else ""
    return {
        "workers": rung.workers,
        "mesh": str(rung.layout),
        "shards": rung.shards,
        "leaves each": row.leaves,
        "efficiency": f"{row.efficiency:.0%}",
        "unit": f"{unit.workers}{together}",
        "memory": byte_text(needed_bytes(memory_of(job, rung))),
        "moves": "" if row.moves is None else f"{row.moves:.0%}" if row.moves else "nothing",
    }


def _values(
    job: Job, table: Sequence[RungRow], picked: Rung | None, why: Sequence[str]
) -> dict[str, Any]:
    """The same for a program."""
    return {
        "leaves": job.num_leaves,
        "bit_key": job.bit_key,
        "rungs": [
            {
                "workers": row.rung.workers,
                "layout": str(row.rung.layout),
                "shards": row.rung.shards,
                "leaves_each": row.leaves,
                "efficiency": row.efficiency,
                "unit": {
                    "workers": row.rung.unit.workers,
                    "on_one_node": row.rung.unit.on_one_node,
                },
                "memory_bytes": memory_of(job, row.rung).parts,
                "moves": row.moves,
            }
            for row in table
        ],
        "picked_workers": None if picked is None else picked.workers,
        "reasons": list(why),
        "warnings": list(cautions(job)),
    }
