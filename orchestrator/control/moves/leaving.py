"""Nodes that the run does without from now on: whether it can, and under which name it mistrusts
them.
"""

from collections.abc import Iterable

from remesh.orchestrator.control.memory.membership import Node, NodeState, WorkerState
from remesh.orchestrator.control.moves.turn import Turn


def leave_node(turn: Turn, node: Node) -> None:
    """No further mesh takes its workers. They end once nothing of them is needed."""
    state = turn.state
    state.roster.turn_node(node, NodeState.LEAVING)
    for worker in state.roster.on(node.name):
        worker.leaving = True
        if worker.state in (WorkerState.STARTING, WorkerState.IDLE):
            state.deadlines.forget(worker.name)
            state.roster.move(worker, WorkerState.LEAVING)


def leave_out(turn: Turn, nodes: Iterable[Node]) -> None:
    """Leaves these on suspicion: each is kept out for a while, longer each time, and may return."""
    for node in nodes:
        key = mistrusted_as(turn, node)
        turn.state.quarantine.note_loss(key, turn.now_s, turn.options.patience_s)
        node.returns = True
        leave_node(turn, node)


def mistrusted_as(turn: Turn, node: Node) -> str:
    """The host, unless another node of it is there: then not the host is to blame."""
    return node.host if turn.state.roster.alone_on_host(node) else node.name


def fits_without(turn: Turn, nodes: Iterable[Node]) -> bool:
    """Whether there is room for a mesh on the other nodes in use, and on spare ones."""
    roster = turn.state.roster
    left_out = [node for node in nodes if node.state is NodeState.USED]
    for node in left_out:
        roster.turn_node(node, NodeState.LEAVING)
    nodes_there = roster.num_used + len(roster.spare)
    fits = turn.size(roster.slot_units) > 0 or bool(roster.spare)
    for node in left_out:
        roster.turn_node(node, NodeState.USED)
    return fits and nodes_there >= turn.options.min_nodes
