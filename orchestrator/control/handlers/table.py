"""Which function handles an event, and whose word counts: a row for each kind of event.

A stale word (of an older generation, of a worker that is unknown or lost, of a timeline that was
abandoned) changes nothing. The row says which of these rules holds for its event; the handler may
then rely on it. What lost: to begin each handler with its own test, which is forgotten in one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from remesh.orchestrator.control.handlers import (
    amending,
    erring,
    nodes,
    presence,
    replanning,
    restart,
    saving,
    snapshots,
    stopping,
    stuck,
    ticking,
    training,
)
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words import events as ev

E = TypeVar("E")


class _OfMember(Protocol):
    @property
    def worker(self) -> str: ...
    @property
    def generation(self) -> int: ...


class _OfStep(Protocol):
    @property
    def generation(self) -> int: ...
    @property
    def step(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """`act` handles the events of which `counts` says that they are not stale."""

    act: Callable[[Turn, Any], None]
    counts: Callable[[State, Any], bool]


def dispatch(turn: Turn, event: ev.Event) -> None:
    handler = HANDLERS[type(event)]
    if handler.counts(turn.state, event):
        handler.act(turn, event)


def of_anybody(_state: State, _event: object) -> bool:
    return True


def of_a_member(state: State, event: _OfMember) -> bool:
    """Of a living worker, about the generation in being."""
    return state.live(event.generation) and event.worker in state.roster.workers


def of_a_worker(state: State, event: _OfMember) -> bool:
    """The same, or of one that was in no generation yet."""
    return of_a_member(state, event) or (
        event.generation == 0 and event.worker in state.roster.workers
    )


def of_the_lineage(state: State, event: _OfStep) -> bool:
    """About a step that the run still stands on."""
    return state.lineage.holds(event.generation, event.step)


def of_the_lineage_or_the_end(state: State, event: ev.CommitFailed) -> bool:
    """The same, or that somebody else has the run."""
    return event.fenced or of_the_lineage(state, event)


def _row(
    kind: type[E],
    act: Callable[[Turn, E], None],
    counts: Callable[[State, E], bool] = of_anybody,
) -> tuple[type[Any], Handler]:
    return kind, Handler(act=act, counts=counts)


HANDLERS: Mapping[type[Any], Handler] = dict(
    [
        _row(ev.RunStarted, restart.on_run_started),
        _row(ev.ControllerRestarted, restart.on_restarted),
        _row(ev.StoodStill, restart.on_stood_still),
        _row(ev.Tick, ticking.on_tick),
        _row(ev.StopRequested, stopping.on_stop_requested),
        _row(ev.ScaleRequested, nodes.on_scale),
        _row(ev.LadderChanged, replanning.on_ladder_changed),
        _row(ev.Amended, amending.on_amended),
        _row(ev.NodeJoined, nodes.on_joined),
        _row(ev.NodeDraining, nodes.on_draining),
        _row(ev.NodeSilent, presence.on_node_silent),
        _row(ev.NodeRefused, presence.on_node_refused),
        _row(ev.NodeLost, presence.on_node_lost),
        _row(ev.VaultUp, presence.on_vault_up),
        _row(ev.VaultLost, presence.on_vault_lost),
        _row(ev.VaultTold, presence.on_vault_told),
        _row(ev.SnapshotsPaused, snapshots.on_paused, of_a_member),
        _row(ev.WorkerReady, presence.on_worker_ready),
        _row(ev.WorkerLost, presence.on_worker_lost),
        _row(ev.WorkerFrozen, presence.on_worker_frozen),
        _row(ev.WorkerStuck, stuck.on_worker_stuck, of_a_member),
        _row(ev.WorkerErred, erring.on_erred, of_a_worker),
        _row(ev.GroupBroken, training.on_group_broken, of_a_member),
        _row(ev.WorkerParked, training.on_parked, of_a_member),
        _row(ev.WorkerFormed, training.on_formed, of_a_member),
        _row(ev.WorkerRestored, training.on_restored, of_a_member),
        _row(ev.RestoreFailed, training.on_restore_failed, of_a_member),
        _row(ev.StepsDone, training.on_steps_done, of_a_member),
        _row(ev.FilesSaved, saving.on_files_saved, of_the_lineage),
        _row(ev.SaveFailed, saving.on_save_failed, of_the_lineage),
        _row(ev.CheckpointCommitted, saving.on_committed, of_the_lineage),
        _row(ev.CommitFailed, saving.on_commit_failed, of_the_lineage_or_the_end),
    ]
)
