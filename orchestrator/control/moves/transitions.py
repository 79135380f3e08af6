"""How one mesh ends: fence or drain, settle, and on to the next one or to the end of the run."""

from remesh.orchestrator.control.memory.generations import Fault
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.moves.next_mesh import (
    ask_vaults,
    form_or_wait,
    take_up_ladder,
)
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import Drain, Fence
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.user_text import count


def fence(turn: Turn, sign: str) -> None:
    """Every member leaves the generation now; what it was about to do is abandoned."""
    note_sign(turn, sign)
    leave(turn, sign)


def leave(turn: Turn, cause: str) -> None:
    state = turn.state
    if state.phase is not Phase.FENCING:
        reason = f"leaving generation {state.current.generation}: {cause}"
        turn.move(Phase.FENCING, reason=reason, within_s=turn.timers.fence_s(state.step_s))
        turn.say(reason)
        ask_to_leave(turn)
    settle_if_parked(turn)


def ask_to_leave(turn: Turn) -> None:
    ask_vaults(turn)
    current = turn.state.current
    workers = reachable(turn)
    if workers:
        turn.do(
            Fence(generation=current.generation, workers=workers, heard_step=current.heard_step)
        )


def note_sign(turn: Turn, sign: str) -> Fault:
    state = turn.state
    state.fault = state.fault or Fault(first_sign_s=turn.now_s)
    state.fault.note_sign(sign)
    return state.fault


def drain(turn: Turn, *, save: bool, reason: str) -> None:
    """Every member leaves the generation at the next step boundary that they agree on."""
    state = turn.state
    state.current.saving = save
    turn.move(Phase.DRAINING, reason=reason, within_s=turn.timers.drain_s(state.step_s))
    ask_to_drain(turn)


def ask_to_drain(turn: Turn) -> None:
    current = turn.state.current
    turn.do(
        Drain(
            generation=current.generation,
            workers=reachable(turn),
            save=current.saving,
            heard_step=current.heard_step,
        )
    )


def settle_if_parked(turn: Turn) -> None:
    """Goes on once no member trains any more, and what was to be saved is saved."""
    state = turn.state
    if state.phase not in (Phase.FENCING, Phase.DRAINING) or state.current.unparked:
        return
    saved_step = state.checkpoints.newest_step
    if saved_step is not None and saved_step >= turn.options.steps:
        turn.end(
            Phase.FINISHED, f"all {count(turn.options.steps, 'step', 'is', 'are')} done and saved"
        )
        return
    if state.phase is Phase.FENCING:
        _settle_fenced(turn)
    elif state.step >= turn.options.steps:
        return
    elif not state.current.saving:
        form_or_wait(turn)
    elif saved_step is not None and saved_step >= state.step:
        _go_on_saved(turn)


def _go_on_saved(turn: Turn) -> None:
    """A drain that saves ends the run, lets nodes go that alone held the state, or lets the next
    mesh leave out some who hold it.
    """
    if turn.state.stop_reason:
        end_stopped(turn)
        return
    take_up_ladder(turn)
    form_or_wait(turn)


def end_stopped(turn: Turn) -> None:
    state = turn.state
    saved_step = state.checkpoints.newest_step
    saved = "nothing is saved" if saved_step is None else f"saved at step {saved_step}"
    phase = Phase.PREEMPTED if state.preempted else Phase.STOPPED
    turn.end(phase, f"{state.stop_reason}; {saved}")


def over_budget(turn: Turn) -> bool:
    """Ends the run if it has failed too often."""
    budget, limit = turn.state.budget, turn.options.max_failures
    if budget.failures <= limit:
        return False
    reason = (
        f"{count(budget.failures, 'failure')}, more than elastic.max_failures={limit}; the last: "
    )
    turn.end(Phase.FAILED, reason + budget.cause)
    return True


def _settle_fenced(turn: Turn) -> None:
    state = turn.state
    fault = state.fault
    assert fault is not None
    if state.stop_reason:
        end_stopped(turn)
        return
    if state.vaults.awaited:
        return
    if not fault.losses and not state.current.has_steps:
        state.budget.count_empty_try(fault.cause, state.step)
        if over_budget(turn):
            return
    form_or_wait(turn)


def reachable(turn: Turn) -> tuple[str, ...]:
    """The members that may still train and are not being killed."""
    workers = turn.state.roster.workers
    unparked = turn.state.current.unparked
    return tuple(sorted(name for name in unparked if workers[name].state is WorkerState.MEMBER))
