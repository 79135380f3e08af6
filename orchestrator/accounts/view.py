"""A frozen picture of a run for status, events and reports."""

from dataclasses import dataclass

from remesh.orchestrator.accounts.waits import Awaited, wait_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.generations import GenerationReport, report
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.phases import ENDED
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.job.amendments import Amendments
from remesh.parallel.plan.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """`rank` is None outside of a mesh; `device` is the index of its device on the node."""

    worker: str
    node: str
    device: int
    pid: int
    state: str
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """`vault` is the address of its vault, empty if it has none."""

    node: str
    state: str
    slots: int
    workers: int
    domain: str
    head: bool
    vault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`reason` says why the phase is what it is. `layout` is None before the first mesh.

    `amendments` are the values that hold from a step on, `origin` the checkpoint that it began as,
    `asked_layout` the degrees that somebody asked for, empty for those of the job.
    """

    phase: str
    ended: bool
    reason: str
    user_error: bool
    generation: int
    step: int
    steps: int
    last: StepRecord | None
    layout: Layout | None
    workers: tuple[WorkerView, ...]
    nodes: tuple[NodeView, ...]
    generations: tuple[GenerationReport, ...]
    failures: int
    committed_step: int | None
    deadline_s: float | None
    wait: Awaited | None
    amendments: Amendments
    origin: str
    asked_layout: str


def view_of(machine: Controller) -> View:
    """Where the run of this controller stands."""
    options, state = machine.options, machine.state
    return View(
        phase=state.phase.value,
        ended=state.phase in ENDED,
        reason=state.reason,
        user_error=state.user_error,
        generation=state.last_generation,
        step=state.step,
        steps=options.steps,
        last=state.last,
        layout=state.current.layout if state.generations else None,
        workers=_workers(state),
        nodes=tuple(
            NodeView(
                node=node.name,
                state=node.state.value,
                slots=node.slots,
                workers=node.num_workers,
                domain=node.domain,
                head=node.head,
                vault=state.vaults.addresses.get(node.name, ""),
            )
            for node in state.roster.nodes.values()
        ),
        generations=tuple(report(life) for life in state.generations),
        failures=state.budget.total,
        committed_step=state.checkpoints.newest_step,
        deadline_s=state.deadlines.earliest_s(),
        wait=wait_of(machine),
        amendments=machine.amendments,
        origin=options.origin,
        asked_layout=str(state.asked_layout or ""),
    )


def _workers(state: State) -> tuple[WorkerView, ...]:
    members = state.current.members if state.generations else ()
    ranks = {member.worker: member.rank for member in members}
    return tuple(
        WorkerView(
            worker=worker.name,
            node=worker.node,
            device=state.roster.device(worker).index,
            pid=worker.pid,
            state=worker.state.value,
            rank=ranks.get(worker.name) if worker.state is WorkerState.MEMBER else None,
        )
        for worker in state.roster.workers.values()
    )
