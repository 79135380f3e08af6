"""`remesh plan`: the meshes that a job's run may have, or a schedule; nothing is started."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remesh.cli.screen.schedule_page import AskedSchedule, schedule_page
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
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import byte_text

_DRAWN_RANKS, _DRAWN_MICROBATCHES = 4, 8
_COSTS = re.compile(r"[0-9]{1,2}(,[0-9]{1,2}){2}")

SCHEDULE = "schedule"  # a column of jobs with pipelines
COLUMNS = (
    "",
    "workers",
    "mesh",
    SCHEDULE,
    "shards",
    "leaves each",
    "efficiency",
    "sent",
    "unit",
    "memory",
    "moves",
)
LEGEND = (
    "sent: the bytes of gradients that a worker sends in a step, as a multiple of an all-reduce; "
    "unit: workers taken together; memory: of each worker at the most, without snapshots; moves: "
    "the share of the state that changes hands as the next smaller mesh grows to this one, or this "
    "one shrinks to it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """What stood on the command line about a schedule; None is what was left out."""

    schedule: str | None = None
    pp: int | None = None
    microbatches: int | None = None
    virtual_stages: int | None = None
    costs: str | None = None

    @property
    def given(self) -> list[str]:
        """The options as they were written."""
        there = (field.name for field in fields(self) if getattr(self, field.name) is not None)
        return [f"--{name.replace('_', '-')}" for name in there]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What stood on the command line. `workers` is None where it was left out."""

    job: Path | None = None
    overrides: Sequence[str] = ()
    workers: int | None = None
    drawn: ScheduleOptions = ScheduleOptions()

    @property
    def about_a_job(self) -> list[str]:
        """What was given that only a job has."""
        given = {"JOB": self.job, "--set": self.overrides, "--workers": self.workers}
        return [name for name, value in given.items() if value]


def show_plan(request: PlanRequest, console: Console, *, as_json: bool) -> None:
    """Raises: UserError if neither a job nor a schedule is asked about, or both; as `plan_job`."""
    drawn = request.drawn
    if drawn.schedule is None:
        if drawn.given:
            raise UserError(f"{drawn.given[0]} is for a schedule; add --schedule NAME")
        if request.job is None:
            raise UserError("there is nothing to plan; name a job file, or a --schedule to draw")
        plan_job(request.job, request, console, as_json=as_json)
        return
    if request.about_a_job:
        raise UserError(
            f"--schedule draws a pipeline of its own; leave out {', '.join(request.about_a_job)}"
        )
    page = schedule_page(_asked(drawn.schedule, drawn))
    if as_json:
        print_json(page.values())
        return
    for line in page.lines(console.width):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _asked(name: str, drawn: ScheduleOptions) -> AskedSchedule:
    return AskedSchedule(
        name=name,
        ranks=drawn.pp or _DRAWN_RANKS,
        microbatches=drawn.microbatches or _DRAWN_MICROBATCHES,
        virtual_stages=drawn.virtual_stages,
        costs=_costs(drawn.costs or "1,1,1"),
    )


def _costs(text: str) -> tuple[int, int, int]:
    """Times of passes in units of time."""
    if not _COSTS.fullmatch(text):
        raise UserError(f"--costs {text} is not understood; use three whole numbers, such as 2,2,1")
    forward, halved, weight = map(int, text.split(","))
    if not forward or not halved:
        raise UserError(f"with --costs {text} a pass takes no time; only W may be 0")
    return forward, halved, weight


def plan_job(path: Path, request: PlanRequest, console: Console, *, as_json: bool) -> None:
    """Raises: UserError if the job is wrong, or the workers are too few for any of its meshes."""
    job = load_job(path, request.overrides)
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
    piped = any(row.rung.stages > 1 for row in table)
    columns = [column for column in COLUMNS if piped or column != SCHEDULE]
    for column in columns:
        shown.add_column(column, no_wrap=column not in ("unit", "leaves each", "shards"))
    for row in table:
        cells = {"": ">" if row.rung == picked else "", **_cells(job, row)}
        shown.add_row(*(str(cells[column]) for column in columns))
    return shown


def _cells(job: Job, row: RungRow) -> dict[str, Any]:
    rung, unit = row.rung, row.rung.unit
    together = " on one node" if unit.on_one_node and unit.workers > 1 else ""
    return {
        "workers": rung.workers,
        "mesh": str(rung.layout),
        SCHEDULE: rung.schedule if rung.stages > 1 else "",
        "shards": rung.shards,
        "leaves each": row.leaves,
        "efficiency": f"{row.efficiency:.0%}",
        "sent": "" if row.sent is None else f"{row.sent:.1f}x",
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
                "bit_key": row.rung.bit_key,
                "schedule": row.rung.schedule,
                "layers": list(row.rung.cut.pipeline.sizes(job.model.num_layers)),
                "shards": row.rung.shards,
                "leaves_each": row.leaves,
                "efficiency": row.efficiency,
                "sent": row.sent,
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
