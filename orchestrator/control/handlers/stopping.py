"""How a run is asked to end before its last step."""

from remesh.orchestrator.control.handlers.transitions import drain, end_stopped
from remesh.orchestrator.control.handlers.turn import Turn
from remesh.orchestrator.control.words.events import StopRequested
from remesh.orchestrator.control.words.phases import Phase


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
