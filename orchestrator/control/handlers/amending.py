"""Changes from a step on: taken up by the next mesh, since a mesh trains as its order says.

A run that has no mesh yet takes them up at once; a mesh that trains is left at its next step
boundary. What lost: to tell the members as they train. They would have to agree on the step, and
one that comes back from an older state would not know of it.
"""

from remesh.orchestrator.control.moves.next_mesh import take_up_changes
from remesh.orchestrator.control.moves.transitions import drain
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import Amended
from remesh.orchestrator.control.words.phases import Phase


def on_amended(turn: Turn, event: Amended) -> None:
    state = turn.state
    state.asked_changes += event.changes
    if state.generations:
        leave_for_changes(turn)
    else:
        take_up_changes(turn, turn.options.first_step)


def leave_for_changes(turn: Turn) -> None:
    """A mesh that trains goes on as it is unless something is asked for."""
    state = turn.state
    running = state.phase is Phase.RUNNING and state.step < turn.options.steps
    if state.asked_changes and running:
        keys = ", ".join(dict.fromkeys(one.key for one in state.asked_changes))
        drain(turn, save=False, reason=f"taking up changes of {keys}")
