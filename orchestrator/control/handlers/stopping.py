"""How a run is asked to end before its last step."""

from remesh.orchestrator.control.memory.state import Parting
from remesh.orchestrator.control.moves.limits import go_on, writes
from remesh.orchestrator.control.moves.parting import end_parted
from remesh.orchestrator.control.moves.repeating import goes_back
from remesh.orchestrator.control.moves.transitions import (
    drain,
    end_saved,
    fence,
    settle_if_parked,
)
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import StopRequested
from remesh.orchestrator.control.words.phases import ENDED, Phase


def on_stop_requested(turn: Turn, event: StopRequested) -> None:
    request_stop(turn, event)


def request_stop(turn: Turn, wish: StopRequested) -> None:
    """The first wish has the run saved and ended; a further one drops no save that is under way.

    A second one ended the run at once before: it was said by accident too easily, by Ray which
    repeats a call, by a lease that lapses while the user's stop is saving.
    """
    state = turn.state
    name, first = wish.wish or wish.reason, not state.stop_reason
    known = name in state.wishes
    state.wishes[name] = _long_enough_s(turn, wish.deadline_s)
    state.stop_reason = state.stop_reason or wish.reason
    phase = Phase.PREEMPTED if state.preempted else Phase.STOPPED
    state.parting = state.parting or Parting(phase=phase, reason=state.stop_reason)
    if wish.at_once:
        end_parted(turn, "it was ended at once")
        return
    if first:
        _begin(turn)
    elif not known:
        turn.say(f"asked to stop once more, and stopping already: {wish.reason}")
    if state.phase not in ENDED:
        _keep_to_notice(turn)


def _long_enough_s(turn: Turn, deadline_s: float | None) -> float | None:
    """When to end a run that has to be over by then: shortly before it, so that it can tell."""
    if deadline_s is None:
        return None
    left_s = max(0.0, deadline_s - turn.now_s)
    return turn.now_s + max(left_s - turn.timers.end_s, left_s / 2)


def _begin(turn: Turn) -> None:
    state = turn.state
    if not state.generations:
        end_parted(turn, "")
        return
    saves = state.phase is not Phase.DRAINING or state.current.saving
    state.current.is_last = saves and state.phase not in (Phase.FENCING, Phase.WAITING)
    if state.phase is Phase.RUNNING:
        drain(turn, save=True, reason=f"stopping: {state.stop_reason}")
    elif state.phase in (Phase.FORMING, Phase.RESTORING):
        if state.step <= (state.checkpoints.newest_step or 0):
            end_parted(turn, "")
    elif state.phase is Phase.DRAINING:
        go_on(turn)
    else:
        if state.phase is Phase.WAITING:
            told_s = turn.timers.fence_s(state.step_s)  # vaults are asked, or workers waited for
            turn.wait(told_s if state.vaults.awaited else turn.options.wait_limit_s)
        settle_if_parked(turn)


def _keep_to_notice(turn: Turn) -> None:
    """What was waited for may take until the notice is over, and no longer."""
    deadlines, notice_s = turn.state.deadlines, turn.state.notice_s
    if notice_s is None:
        return
    if deadlines.phase_s is None or deadlines.phase_s > notice_s or writes(turn):
        deadlines.phase_s = notice_s


def end_if_nothing_is_learned(turn: Turn) -> None:
    """After every event: too many steps in a row have updated nothing, and the next ones will not.

    What was learned before them is saved. To go on was the alternative: it ends after the last
    step, with the model of the first of them and a curve that says nothing.
    """
    state, row, limit = turn.state, turn.state.fruitless, turn.options.max_skipped_steps
    if row.in_row < limit or state.phase in ENDED or state.parting is not None:
        return
    if goes_back(turn, row.first):
        row.in_row = 0
        fence(turn, f"steps from {row.first} on updated nothing, so soon after it got its state")
        return
    last = row.first + row.in_row - 1
    why = (
        f"steps {row.first} to {last} updated nothing, train.max_skipped_steps = {limit} in a "
        f"row: loss or gradient was not finite, at a learning rate of {row.lr:g}; go on "
        f"with --set train.lr=..., a lower one, or --set data.skip=..., which hold from the next "
        f"step on, or from before step {row.first} with --from-step"
    )
    if row.first - 1 > (state.checkpoints.newest_step or 0):
        end_saved(turn, why)
    else:
        turn.end(Phase.FAILED, why)  # the state that is saved is no older
