"""The machine that decides: events in, commands out, one mutator, no clock and no I/O.

A stale word (an older generation, an unknown or lost worker, a doubled report) changes nothing.
What to do about an event stands beside its subject: `presence` for nodes and workers, `training`
for the generation in being, `saving` for checkpoints; `transitions` is how mesh follows mesh,
`restart` how one controller follows another.
"""

from typing import assert_never

from remesh.orchestrator.control.handlers import nodes, presence, saving, training
from remesh.orchestrator.control.handlers.replanning import on_ladder_changed
from remesh.orchestrator.control.handlers.restart import on_restarted
from remesh.orchestrator.control.handlers.staffing import form_or_grow, give_up, lose_worker, refill
from remesh.orchestrator.control.handlers.stopping import request_stop
from remesh.orchestrator.control.handlers.transitions import (
    end_stopped,
    enough,
    fence,
    form_or_wait,
    settle_if_parked,
    waiting_reason,
)
from remesh.orchestrator.control.handlers.turn import Turn
from remesh.orchestrator.control.memory.deadlines import expired
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.commands import Command
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import ENDED, Phase

MAX_NAMES = 8


class Controller:
    """Holds the state of one run. Events may be handled before `start`, which lets it act."""

    def __init__(self, options: Options, state: State | None = None) -> None:
        self.options = options
        self.state = State() if state is None else state

    def start(self, now_s: float) -> list[Command]:
        """The same as handling RunStarted, which the journal has to hold."""
        return self.handle(ev.RunStarted(), now_s)

    def handle(self, event: ev.Event, now_s: float) -> list[Command]:
        """What to do about `event`, in this order. `now_s` never goes backwards."""
        turn = Turn(options=self.options, state=self.state, now_s=now_s)
        if self.state.phase not in ENDED:
            _dispatch(turn, event)
            nodes.settle_nodes(turn)
            refill(turn)
        return turn.commands

    def next_deadline_s(self) -> float | None:
        """The moment at which the controller wants a Tick, None for never."""
        return self.state.deadlines.earliest_s()


def _dispatch(turn: Turn, event: ev.Event) -> None:
    match event:
        case ev.RunStarted() | ev.ControllerRestarted() | ev.Tick():
            _on_run(turn, event)
        case (
            ev.StopRequested()
            | ev.NodeJoined()
            | ev.NodeDraining()
            | ev.ScaleRequested()
            | ev.LadderChanged()
        ):
            _on_wish(turn, event)
        case (
            ev.NodeSilent() | ev.NodeLost() | ev.WorkerReady() | ev.WorkerLost() | ev.WorkerFrozen()
        ):
            presence.on_presence(turn, event)
        case ev.VaultUp() | ev.VaultLost() | ev.VaultTold():
            presence.on_vault(turn, event)
        case ev.FilesSaved() | ev.SaveFailed() | ev.CheckpointCommitted() | ev.CommitFailed():
            saving.on_saving(turn, event)
        case (
            ev.GroupBroken()
            | ev.WorkerParked()
            | ev.WorkerFormed()
            | ev.WorkerRestored()
            | ev.RestoreFailed()
            | ev.StepsDone()
        ):
            if turn.state.live(event.generation) and event.worker in turn.state.roster.workers:
                training.on_training(turn, event)
        case ev.WorkerErred():
            current = event.generation == 0 or turn.state.live(event.generation)
            if current and event.worker in turn.state.roster.workers:
                training.on_erred(turn, event)
        case _:
            assert_never(event)


def _on_run(turn: Turn, event: ev.RunStarted | ev.ControllerRestarted | ev.Tick) -> None:
    match event:
        case ev.RunStarted():
            _on_run_started(turn)
        case ev.ControllerRestarted():
            on_restarted(turn, event)
        case ev.Tick():
            _on_tick(turn)
        case _:
            assert_never(event)


def _on_run_started(turn: Turn) -> None:
    state, options = turn.state, turn.options
    state.started = True
    state.roster.count_units(turn.ladder.units)
    state.step = options.first_step
    state.last_generation = options.last_generation
    state.checkpoints.good = list(options.checkpoints)
    if state.step >= options.steps:
        turn.end(Phase.FINISHED, f"step {state.step} was saved before; 0 steps were left")
        return
    state.reason = waiting_reason(turn)
    turn.wait(options.wait_limit_s)


def _on_wish(
    turn: Turn,
    event: ev.StopRequested
    | ev.NodeJoined
    | ev.NodeDraining
    | ev.ScaleRequested
    | ev.LadderChanged,
) -> None:
    """Somebody offers the run something, or takes it away, with time to do it well."""
    match event:
        case ev.StopRequested():
            request_stop(turn, event.reason)
        case ev.NodeJoined():
            nodes.on_joined(turn, event)
        case ev.NodeDraining():
            nodes.on_draining(turn, event)
        case ev.ScaleRequested():
            nodes.on_scale(turn, event)
        case ev.LadderChanged():
            on_ladder_changed(turn, event)
        case _:
            assert_never(event)


def _on_tick(turn: Turn) -> None:
    state = turn.state
    deadlines = state.deadlines
    if deadlines.cool_s is not None and deadlines.cool_s <= turn.now_s:
        nodes.end_quarantines(turn)
    for name in expired(deadlines.starting, turn.now_s):
        why = f"did not start within {turn.timers.start_s:.0f} s"
        if not give_up(turn, state.roster.workers[name], why):
            return
    for name in expired(deadlines.ending, turn.now_s):
        lose_worker(turn, state.roster.workers[name], "no answer and no sign of its end", None)
        if state.phase in ENDED:
            return
    if deadlines.phase_s is not None and deadlines.phase_s <= turn.now_s:
        deadlines.phase_s = None
        _on_phase_over(turn)
    if deadlines.gather_s is not None and deadlines.gather_s <= turn.now_s:
        form_or_grow(turn)


def _on_phase_over(turn: Turn) -> None:
    """The phase has lasted as long as it may."""
    state = turn.state
    generation = state.last_generation
    match state.phase:
        case Phase.WAITING if enough(turn):
            form_or_wait(turn)
        case Phase.WAITING:
            limit_s = turn.options.wait_limit_s
            turn.end(Phase.FAILED, f"{waiting_reason(turn)}, for {limit_s:.0f} s")
        case Phase.FORMING:
            fence(turn, f"generation {generation} did not form: {_names(state.current.unformed)}")
        case Phase.RESTORING:
            late = _names(state.current.unrestored)
            fence(turn, f"generation {generation} did not restore: {late}")
        case Phase.RUNNING:
            fence(turn, f"generation {generation} made no step")
        case Phase.DRAINING if state.stop_reason and state.current.saving:
            end_stopped(turn)
        case Phase.DRAINING:
            fence(turn, f"generation {generation} did not drain")
        case _:
            _end_unparked(turn)


def _end_unparked(turn: Turn) -> None:
    """Who does not answer a fence is killed; a vault that does not is done without."""
    state = turn.state
    state.vaults.give_up(state.roster.nodes)
    for name in sorted(state.current.unparked):
        worker = state.roster.workers[name]
        if worker.state is not WorkerState.MEMBER:
            continue
        if not give_up(turn, worker, f"did not leave generation {state.last_generation}"):
            return
    settle_if_parked(turn)


def _names(workers: set[str]) -> str:
    shown = sorted(workers)[:MAX_NAMES]
    return ", ".join(shown) + (" and others" if len(workers) > len(shown) else "")
