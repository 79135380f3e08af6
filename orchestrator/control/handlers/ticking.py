"""What is due at a moment that the controller had asked for: nobody else does anything about it."""

from typing import assert_never

from remesh.orchestrator.control.handlers.nodes import end_quarantines
from remesh.orchestrator.control.handlers.stuck import judge_stuck
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.moves.next_mesh import enough, form_or_wait, waiting_reason
from remesh.orchestrator.control.moves.staffing import form_or_grow, give_up, lose_worker
from remesh.orchestrator.control.moves.transitions import end_stopped, fence, settle_if_parked
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import Tick
from remesh.orchestrator.control.words.phases import ENDED, Phase

MAX_NAMES = 8


def on_tick(turn: Turn, _: Tick) -> None:
    state = turn.state
    deadlines = state.deadlines
    if deadlines.cool_s is not None and deadlines.cool_s <= turn.now_s:
        end_quarantines(turn)
    for name in deadlines.starting.expired(turn.now_s):
        why = f"did not start within {turn.timers.start_s():.0f} s"
        if not give_up(turn, state.roster.workers[name], why):
            return
    for name in deadlines.ending.expired(turn.now_s):
        lose_worker(turn, state.roster.workers[name], "no answer and no sign of its end", None)
        if state.phase in ENDED:
            return
    if deadlines.phase_s is not None and deadlines.phase_s <= turn.now_s:
        deadlines.phase_s = None
        _on_phase_over(turn)
    if deadlines.judge_s is not None and deadlines.judge_s <= turn.now_s:
        judge_stuck(turn)
        if state.phase in ENDED:
            return
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
        case Phase.FENCING:
            _end_unparked(turn)
        case Phase.FINISHED | Phase.FAILED | Phase.STOPPED | Phase.PREEMPTED:
            raise AssertionError(f"a run that has {state.phase} waits for nothing")
        case _:
            assert_never(state.phase)


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
