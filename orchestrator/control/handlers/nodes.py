"""Which nodes the run uses: they join, are asked to leave, are let go, come back, are kept out.

A node that leaves is done without at a step boundary: its members drain with all the others, the
next mesh forms without them, their processes end, and nothing of the run is left to keep the node
from going. It loses no step and counts as no failure. Only where nothing else would hold the state,
or too few would be left for a mesh, the drain saves.
"""

from remesh.orchestrator.control.handlers.stopping import request_stop
from remesh.orchestrator.control.memory.membership import Node, NodeState, Worker, WorkerState
from remesh.orchestrator.control.moves.choosing import last_holders, stays_whole
from remesh.orchestrator.control.moves.leaving import leave_node
from remesh.orchestrator.control.moves.next_mesh import enough
from remesh.orchestrator.control.moves.staffing import form_or_grow
from remesh.orchestrator.control.moves.transitions import drain
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import EndWorker, ReleaseNode
from remesh.orchestrator.control.words.events import (
    NodeDraining,
    NodeJoined,
    ScaleRequested,
    StopRequested,
)
from remesh.orchestrator.control.words.phases import ENDED, Phase
from remesh.orchestrator.control.words.recovery import slots_of
from remesh.orchestrator.user_text import count


def on_joined(turn: Turn, event: NodeJoined) -> None:
    state = turn.state
    if event.node in state.roster.nodes:
        return
    host = event.host or event.node
    until_s = _until_s(turn, event.node, host)
    kept_out = until_s > turn.now_s
    state.budget.take_back(event.node)
    node = Node(
        name=event.node,
        slots=event.slots,
        domain=event.domain,
        head=event.head,
        host=host,
        state=NodeState.QUARANTINED if kept_out else NodeState.SPARE,
        until_s=until_s if kept_out else None,
    )
    state.roster.add_node(node)
    if kept_out:
        _say_kept_out(turn, node)
    elif state.started:
        spare = "" if _wants_more(turn) else "; it is a spare: more nodes than are wanted"
        turn.say(f"node {node.name} joined with room for {count(node.slots, 'worker')}{spare}")


def keep_out_again(turn: Turn) -> None:
    """Those who joined before the run began to act, and whose hosts its start before had lost."""
    for node in list(turn.state.roster.nodes.values()):
        until_s = _until_s(turn, node.name, node.host)
        if until_s > turn.now_s:
            _turn_out(turn, node, until_s)


def on_draining(turn: Turn, event: NodeDraining) -> None:
    """A node that is drained twice leaves once; what is known about its end may change."""
    state = turn.state
    node = state.roster.nodes.get(event.node)
    if node is None or node.state is NodeState.DRAINED:
        return
    node.until_s = event.deadline_s
    node.returns = False
    if node.state is NodeState.LEAVING:
        return
    if node.head and state.preempted:
        _stop_with_head(turn, node, event)
        return
    turn.say(f"node {node.name} is leaving: {event.cause}")
    if node.head:
        state.preempted = True
        _stop_with_head(turn, node, event)
        return
    leave_node(turn, node)
    do_without_leavers(turn)


def on_scale(turn: Turn, event: ScaleRequested) -> None:
    """Whole nodes leave, the newest first and the head last, or spares are taken in."""
    state, options = turn.state, turn.options
    wanted = min(max(event.nodes, options.min_nodes), options.max_nodes)
    state.wanted_nodes = wanted
    used = [node for node in state.roster.nodes.values() if node.state is NodeState.USED]
    turn.say(f"scaling from {len(used)} to {count(wanted, 'node')}")
    used.sort(key=lambda node: not node.head)
    for node in used[wanted:]:
        node.returns = True
        leave_node(turn, node)
    do_without_leavers(turn)


def do_without_leavers(turn: Turn) -> None:
    """Every member stops at a step boundary, so that the next mesh forms without those that go."""
    state = turn.state
    running = state.phase is Phase.RUNNING and state.step < turn.options.steps
    if not running or state.parting is not None or not state.roster.leaving:
        return
    members = [state.roster.workers[member.worker] for member in state.current.members]
    leaving = sorted({worker.node for worker in members if worker.leaving})
    if not leaving:
        return
    save = not stays_whole(turn) or not enough(turn)
    if save and state.checkpoints.stalled:
        return  # until storage has taken one again
    drain(turn, save=save, reason=f"doing without {', '.join(leaving)}")


def _stop_with_head(turn: Turn, node: Node, event: NodeDraining) -> None:
    """The head holds the cluster together: the run is over when it goes."""
    reason = f"the head node {node.name} is leaving: {event.cause}"
    wish = f"node {node.name}"
    request_stop(turn, StopRequested(reason=reason, wish=wish, deadline_s=event.deadline_s))


def settle_nodes(turn: Turn) -> None:
    """After every event: lets go who is done with, and takes in spares while more are wanted."""
    if turn.state.phase not in ENDED:
        _let_go(turn)
        _take_in(turn)


def end_quarantines(turn: Turn) -> None:
    """Hosts that have been kept out for long enough are spares from now on."""
    state = turn.state
    kept_out = [state.roster.nodes[name] for name in state.roster.kept_out]
    for node in kept_out:
        if node.until_s is not None and node.until_s <= turn.now_s:
            node.until_s = None
            state.roster.turn_node(node, NodeState.SPARE)
            turn.say(f"node {node.name} may be used again")
    moments = (node.until_s for node in kept_out if node.state is NodeState.QUARANTINED)
    state.deadlines.cool_s = min((at_s for at_s in moments if at_s is not None), default=None)


def _until_s(turn: Turn, name: str, host: str) -> float:
    """The moment from which a node may be used: it is held against its host, or against itself."""
    quarantine, patience_s = turn.state.quarantine, turn.options.patience_s
    return max(quarantine.until_s(one, patience_s) for one in {name, host})


def _turn_out(turn: Turn, node: Node, until_s: float) -> None:
    node.until_s = until_s
    turn.state.roster.turn_node(node, NodeState.QUARANTINED)
    _say_kept_out(turn, node)


def _say_kept_out(turn: Turn, node: Node) -> None:
    quarantine = turn.state.quarantine
    losses = max(quarantine.count(one) for one in (node.name, node.host))
    for_s = (node.until_s or turn.now_s) - turn.now_s
    turn.say(
        f"node {node.name} is in quarantine for {for_s:.0f} s: its host was lost or left out "
        f"{count(losses, 'time')}"
    )
    end_quarantines(turn)


def _let_go(turn: Turn) -> None:
    """A mesh that is being left may still need the state of those that go."""
    state = turn.state
    if not state.roster.leaving or state.phase in (Phase.FENCING, Phase.DRAINING):
        return
    kept = last_holders(turn) if state.phase is Phase.WAITING else []
    for name in list(state.roster.leaving):
        for worker in state.roster.on(name):
            if worker.state is WorkerState.LEAVING and not _is_kept(turn, worker, kept):
                _end(turn, worker)
        node = state.roster.nodes[name]
        if not node.num_workers and not _vault_is_needed(turn, name):
            _release(turn, node)


def _vault_is_needed(turn: Turn, node: str) -> bool:
    """The next mesh may start, or is about to start, from what the vault there holds."""
    state = turn.state
    if state.phase is Phase.WAITING:
        return node in state.vaults.told
    if state.phase not in (Phase.FORMING, Phase.RESTORING):
        return False
    return any(slot.vault == node for slot in slots_of(state.current.restore))


def _is_kept(turn: Turn, worker: Worker, holders: list[Worker]) -> bool:
    """It still writes files of a checkpoint, or alone holds the newest state."""
    saves = turn.state.checkpoints.saves.values()
    return worker in holders or any(worker.name in save.waiting for save in saves)


def _end(turn: Turn, worker: Worker) -> None:
    state = turn.state
    state.roster.move(worker, WorkerState.ENDING)
    state.deadlines.ending[worker.name] = turn.now_s + turn.timers.end_s
    turn.do(EndWorker(worker=worker.name, node=worker.node, reason="its node leaves"))


def _release(turn: Turn, node: Node) -> None:
    turn.state.vaults.lose(node.name)
    turn.say(f"node {node.name} is free")
    turn.do(ReleaseNode(node=node.name))
    until_s = _until_s(turn, node.name, node.host)
    if node.returns and until_s > turn.now_s:
        _turn_out(turn, node, until_s)
    else:
        state = NodeState.SPARE if node.returns else NodeState.DRAINED
        turn.state.roster.turn_node(node, state)


def _wants_more(turn: Turn) -> bool:
    state = turn.state
    wanted = turn.options.max_nodes if state.wanted_nodes is None else state.wanted_nodes
    return state.roster.num_used < wanted


def _take_in(turn: Turn) -> None:
    roster = turn.state.roster
    taken_in = False
    while turn.state.started and roster.spare and _wants_more(turn):
        node = min((roster.nodes[name] for name in roster.spare), key=lambda node: not node.head)
        roster.turn_node(node, NodeState.USED)
        taken_in = True
    if taken_in:
        form_or_grow(turn)
