"""How a run is asked to end before its last step."""

from remesh.orchestrator.control.moves.transitions import drain, end_stopped
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import StopRequested
from remesh.orchestrator.control.words.phases import ENDED, Phase


def on_stop_requested(turn: Turn, event: StopRequested) -> None:
    request_stop(turn, event.reason)


def request_stop(turn: Turn, reason: str) -> None:
    """The first request saves at the next step boundary, where there is one; a second ends at once.

    A drain that does not save is not joined: the mesh that follows it saves and stops.
    """
    state = turn.state
    again = bool(state.stop_reason)
    state.stop_reason = state.stop_reason or reason
    if again or state.phase not in (Phase.RUNNING, Phase.DRAINING):
        end_stopped(turn)
    elif state.phase is Phase.RUNNING:
        drain(turn, save=True, reason=f"stopping: {reason}")
    else:
        turn.wait(turn.timers.drain_s(state.step_s))


def end_if_nothing_is_learned(turn: Turn) -> None:
    """After every event: too many steps in a row have updated nothing, and the next ones will not.

    What was saved before them stands. To go on was the alternative: it ends after the last step,
    with the model of the first of them and a curve that says nothing.
    """
    row, limit = turn.state.fruitless, turn.options.max_skipped_steps
    if row.in_row < limit or turn.state.phase in ENDED:
        return
    last = row.first + row.in_row - 1
    turn.end(
        Phase.FAILED,
        f"steps {row.first} to {last} updated nothing, train.max_skipped_steps = {limit} in a "
        f"row: loss or gradient was not finite, at a learning rate of {row.lr:g}; go on "
        f"with --set train.lr=..., a lower one, or --set data.skip=..., which hold from the next "
        f"step on, or from before step {row.first} with --from-step",
    )
