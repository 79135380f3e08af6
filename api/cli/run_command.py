"""`remesh run`: start a job, or take up its run, and stay until it ends."""

import json
import os
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from remesh.actors.cluster.this_machine import check_metrics_host, this_machine
from remesh.actors.jobs.earlier_wish import as_wished
from remesh.actors.jobs.inside_job import check_cluster, check_folders
from remesh.cli.data_commands import ensure_dataset
from remesh.cli.driving.drive import Display, DrivenRun, Wish, drive
from remesh.cli.driving.ending import told_end
from remesh.cli.driving.interrupts import Interrupts
from remesh.cli.outputs import go_on_unheard
from remesh.cli.screen.progress import open_display
from remesh.data.regular_file import read_bounded
from remesh.orchestrator.job.cautions import cautions
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.faults_on_order import check_faults, parse_fault, parse_kill
from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.plan.fitting import check_machine
from remesh.orchestrator.plan.planner import NodeRoom, ladder_of, reasons, rung_for
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count

_MAX_REPORT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What stood on the command line. `nodes` and `workers_per_node` are None where left out."""

    job: Path
    overrides: Sequence[str] = ()
    nodes: int | None = None
    workers_per_node: int | None = None
    kills: Sequence[str] = ()
    faults: Sequence[str] = ()
    report: Path | None = None
    fresh: bool = False
    from_step: int | None = None
    address: str | None = None


def run_job(request: RunRequest) -> int:
    """The exit code of the run that a command asks for."""
    job = load_job(request.job, request.overrides)
    return train(job, run_options(request, job), request.report)


def train(job: Job, options: RunOptions, report: Path | None = None) -> int:
    """The exit code of a run, once it has ended."""
    go_on_unheard()
    with closing(open_display(Console())) as display:
        _introduce(job, options, display)
        if report is not None:
            _prepare_report(report)
        ensure_dataset(job, display.note)
        from remesh.actors.jobs.submit import start_run  # noqa: PLC0415 - loads ray: 1 s

        with closing(start_run(job, options, display.note)) as run, Interrupts() as wish:
            return follow(run, display, wish, report)


def run_options(request: RunRequest, job: Job) -> RunOptions:
    """How to start the run. Raises: UserError if the options do not go together."""
    if request.address is not None and (request.nodes or request.workers_per_node):
        raise UserError(
            "--nodes and --workers-per-node shape the cluster that is started here; "
            "with --address the cluster is there already, so leave them out"
        )
    check_cluster(request.address)
    check_folders(job)
    if request.fresh and request.from_step is not None:
        raise UserError(
            "--fresh sets the run aside, and --from-step goes back in it; leave one of them out"
        )
    defaults = RunOptions()
    faults = (
        *(parse_kill(text) for text in request.kills),
        *(parse_fault(text) for text in request.faults),
    )
    options = RunOptions(
        nodes=request.nodes or defaults.nodes,
        workers_per_node=request.workers_per_node or defaults.workers_per_node,
        faults=faults,
        fresh=request.fresh,
        from_step=request.from_step,
        address=request.address,
    )
    check_faults(
        faults,
        steps=job.train.steps,
        ranks=job.elastic.max_workers,
        nodes=options.nodes,
        address=options.address,
    )
    return options


def follow(run: DrivenRun, display: Display, wish: Wish, report: Path | None) -> int:
    """Drives a run to its end, writes the report, and gives the exit code."""
    try:
        status = drive(run, display, wish)
    except KeyboardInterrupt:
        display.note("stopped at once; the run can be taken up at its last checkpoint")
        return 128 + (wish.signal_number or signal.SIGINT)
    return told_end(run, status, display, wish, report)


def _introduce(job: Job, options: RunOptions, display: Display) -> None:
    """Says what is about to start. Raises: UserError if the workers are too few for the job."""
    for caution in cautions(job):
        display.note(f"warning: {caution}")
    if options.address is not None:
        display.note(f"{job.run_dir} on the cluster at {options.address}")
        return
    display.note(
        f"{job.run_dir} on {count(options.nodes, 'local node')} with room for "
        f"{count(options.workers_per_node, 'worker')} each"
    )
    room = NodeRoom(nodes=options.nodes, places=options.workers_per_node)
    job, wished = (
        (job, None)
        if options.fresh
        else as_wished(job, job.run_dir, lambda one: one.within(room.units))
    )
    if wished:
        display.note(wished)
    ladder = ladder_of(job)
    for reason in reasons(job, ladder, rung_for(job, ladder, room), room):
        display.note(reason)
    check_metrics_host(job)
    for warning in check_machine(job, ladder.within(room.units) or ladder, room, this_machine(job)):
        display.note(f"warning: {warning}")


def _prepare_report(path: Path) -> None:
    """Finds out before the run whether its report can be written, and drops an older one."""
    if os.path.lexists(path) and not _is_report(path):
        raise UserError(
            f"--report {path}: what is there is no report of a run; remove it, or name another file"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"--report {path}: cannot be written: {error.strerror}") from None
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--report {path}: the folder {path.parent} is read-only")


def _is_report(path: Path) -> bool:
    """Whether a file is one of ours, or an empty one that was made for it."""
    try:
        encoded = read_bounded(path, _MAX_REPORT_BYTES)
        found = json.loads(encoded or '{"status": "", "losses": []}')
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"status", "losses"} <= found.keys()
