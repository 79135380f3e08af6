"""A ladder in place of the run's own: taken up where nobody can lose by it.

A mesh that trains is left at a step boundary once there are workers for one of the new ladder, who
are started meanwhile. The state goes over from rank to rank. Where the next mesh would leave out
some who hold what nobody else does, the members save as they drain, and the new ladder counts from
that checkpoint on. Should the drain fail, the next mesh is still one of the old ladder, and drains
again. Parked workers of a run that waits save likewise. A mesh that is on the new ladder too stays
as it is. What lost: to pick from the new ladder at once, which can cost all the steps since the
last checkpoint.
"""

from remesh.orchestrator.control.moves.choosing import takes_all_along
from remesh.orchestrator.control.moves.next_mesh import take_up_ladder
from remesh.orchestrator.control.moves.parting import save_left_behind
from remesh.orchestrator.control.moves.staffing import form_or_grow
from remesh.orchestrator.control.moves.transitions import drain
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import LadderChanged
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.user_text import count


def on_ladder_changed(turn: Turn, event: LadderChanged) -> None:
    """The leaves were fixed at the run's first start: a ladder with others is refused."""
    asked, known = event.ladder.num_leaves, turn.ladder.num_leaves
    if asked != known:
        turn.say(
            f"a ladder with {count(asked, 'leaf')} is refused: this run has {known}, fixed at its "
            f"first start ({event.reason})"
        )
        return
    most = count(event.ladder.highest.workers, "worker")
    turn.say(f"other meshes, of up to {most}: {event.reason}")
    state = turn.state
    state.next_ladder, state.asked_layout = event, event.layout
    state.roster.count_units((*turn.ladder.units, *event.ladder.units))
    climb(turn)


def climb(turn: Turn) -> None:
    """Leaves a mesh that is not on the newest ladder; grows or forms on it where that is safe.

    Cost: a few divisions for each flight; as to choose a mesh once there are workers for one.
    """
    state = turn.state
    change = state.next_ladder
    if change is None:
        return
    running = state.phase is Phase.RUNNING
    if state.phase is Phase.WAITING and save_left_behind(turn, change.ladder):
        return
    if state.phase is Phase.WAITING or (running and state.current.rung in change.ladder):
        take_up_ladder(turn)
        form_or_grow(turn)
    elif running and change.ladder.size(state.roster.ready_units, at_least=turn.at_least):
        save = not takes_all_along(turn, change.ladder)
        if not save or not state.checkpoints.stalled:
            drain(turn, save=save, reason=f"going over to other meshes: {change.reason}")
