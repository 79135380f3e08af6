"""A worker whose job failed on it: a file, a disk, its data; once it may be its node that is wrong.

A mistake in the job fails on any node, and ends the run at once. Anything else gets a second try
without the node on which it happened, if the others suffice. If it comes again there, at the same
step or in the same words, it is the job's after all. What lost: to end the run at the first error,
which lets one bad disk of a hundred end it.
"""

from remesh.orchestrator.control.memory.membership import Node, NodeState, WorkerState
from remesh.orchestrator.control.memory.repeats import OwnFailure
from remesh.orchestrator.control.moves.leaving import fits_without, leave_out
from remesh.orchestrator.control.moves.staffing import end_worker, form_or_grow, give_up
from remesh.orchestrator.control.moves.transitions import end_saved, fence, is_saved
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import WorkerErred
from remesh.orchestrator.control.words.phases import ENDED


def on_erred(turn: Turn, event: WorkerErred) -> None:
    state = turn.state
    worker = state.roster.workers[event.worker]
    if worker.state is WorkerState.ENDING:
        return
    node = state.roster.nodes[worker.node]
    failure = OwnFailure(step=state.step + 1, text=event.error, node=node.name)
    elsewhere = state.repeats.erred_elsewhere(failure)
    if event.certain or elsewhere is not None or not _can_do_without(turn, node):
        _end(turn, event, "" if elsewhere is None else f" (on node {elsewhere.node} too)")
        return
    state.repeats.erred.append(failure)
    was_member = worker.state is WorkerState.MEMBER
    why = f"failed: {event.error}"
    if not give_up(turn, worker, why):
        return
    if node.state is NodeState.USED:
        turn.say(f"doing without node {node.name}: {event.worker} failed there")
        leave_out(turn, [node])
    if was_member:
        fence(turn, f"{worker.name} on {worker.node} {why}")
    if state.phase not in ENDED:
        form_or_grow(turn)


def _end(turn: Turn, event: WorkerErred, seen: str) -> None:
    """The others save what they hold: it does not train any more."""
    worker = turn.state.roster.workers[event.worker]
    if worker.state is WorkerState.MEMBER and not is_saved(turn):
        end_worker(turn, worker, f"failed: {event.error}")
    who = "" if event.user_error else f"{event.worker} failed: "
    end_saved(turn, f"{who}{event.error}{seen}", user_error=event.user_error)


def _can_do_without(turn: Turn, node: Node) -> bool:
    return node.state is not NodeState.USED or fits_without(turn, [node])
