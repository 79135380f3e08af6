"""What the controller does when nodes, workers and vaults come and go."""

from remesh.orchestrator.control.handlers.replanning import climb
from remesh.orchestrator.control.memory.membership import Worker, WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.moves.staffing import (
    form_or_grow,
    give_up,
    is_awaited,
    lose_node,
    lose_worker,
)
from remesh.orchestrator.control.moves.transitions import fence, settle_if_parked, still_since_s
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import (
    NodeLost,
    NodeRefused,
    NodeSilent,
    VaultLost,
    VaultTold,
    VaultUp,
    WorkerFrozen,
    WorkerLost,
    WorkerReady,
)
from remesh.orchestrator.control.words.phases import ENDED, Phase


def on_vault_up(turn: Turn, event: VaultUp) -> None:
    turn.state.vaults.up(event.node, event.address)
    settle_if_parked(turn)


def on_vault_lost(turn: Turn, event: VaultLost) -> None:
    turn.state.vaults.lose(event.node)
    settle_if_parked(turn)


def on_vault_told(turn: Turn, event: VaultTold) -> None:
    turn.state.vaults.tell(event.node, event.generation, event.slots)
    settle_if_parked(turn)


def on_node_silent(turn: Turn, event: NodeSilent) -> None:
    """A suspect. While a generation is being left it is not waited for any longer, once all members
    on other nodes have been heard.

    Where nobody else is there, it may be the machine that has too much to do: then to give it up
    took away all that the run had. It counts as lost when it has been silent for longer.
    """
    members = turn.state.current.members if turn.state.generations else ()
    others = {member.worker for member in members if member.node != event.node}
    if others and others.isdisjoint(turn.state.current.unparked):
        cause = f"silent for {event.silent_s:.1f} s while its generation ended"
        _wait_no_longer(turn, event.node, cause, turn.now_s - event.silent_s)


def on_node_refused(turn: Turn, event: NodeRefused) -> None:
    """The same, at once. A mesh that trains shows that its members live, whoever says otherwise: so
    nobody is given up for this alone.
    """
    cause = "its agent's process is gone: connections to it are refused"
    _wait_no_longer(turn, event.node, cause, event.broken_s)


def on_node_lost(turn: Turn, event: NodeLost) -> None:
    turn.state.vaults.lose(event.node)
    if event.node in turn.state.roster.nodes:
        lose_node(turn, event.node, event.cause, still_since_s(turn, event.died_at_s))
    else:
        _note_late_death(turn, event.node, event.died_at_s)
    settle_if_parked(turn)


def on_worker_ready(turn: Turn, event: WorkerReady) -> None:
    state = turn.state
    worker = state.roster.workers.get(event.worker)
    if worker is None or worker.state is not WorkerState.STARTING:
        return
    worker.pid, worker.device = event.pid, event.device
    device = state.roster.device(worker)
    others = (w for w in state.roster.on(worker.node) if w is not worker and _has_one(w))
    if other := next((w for w in others if state.roster.device(w) == device), None):
        give_up(turn, worker, f"was given device {device.index}, which {other.name} has")
        return
    state.roster.move(worker, WorkerState.IDLE)
    state.deadlines.forget(worker.name)
    node = state.roster.nodes[worker.node]
    node.late_starts, node.warm = 0, True
    state.start_trouble = ""
    state.last_ready_s = turn.now_s
    climb(turn)
    form_or_grow(turn)


def _has_one(worker: Worker) -> bool:
    """Whether it was given a device, as far as it has said: its place is a guess before that."""
    return worker.pid > 0 or worker.state not in (WorkerState.STARTING, WorkerState.ENDING)


def on_worker_lost(turn: Turn, event: WorkerLost) -> None:
    state = turn.state
    worker = state.roster.workers.get(event.worker)
    if worker is not None:
        if event.traceback and state.generations and worker.name in state.current.unparked:
            state.repeats.pending = state.repeats.pending or event.cause
        lose_worker(turn, worker, event.cause, event.died_at_s)
    else:
        _note_late_death(turn, event.worker, event.died_at_s)


def on_worker_frozen(turn: Turn, event: WorkerFrozen) -> None:
    state = turn.state
    worker = state.roster.workers.get(event.worker)
    if worker is None or worker.state is WorkerState.ENDING:
        return
    was_needed = worker.state is WorkerState.MEMBER or is_awaited(turn, worker)
    why = f"gave no sign of life for {event.silent_s:.1f} s"
    if give_up(turn, worker, why) and was_needed:
        sign = f"{worker.name} on {worker.node} {why}"
        fence(turn, sign, began_s=still_since_s(turn, turn.now_s - event.silent_s))
    if state.phase not in ENDED:
        form_or_grow(turn)


def _wait_no_longer(turn: Turn, name: str, cause: str, since_s: float) -> None:
    """Of a node that gives no sign since then: its members that have not left, and its vault."""
    state = turn.state
    if not is_held_up(state, name):
        return
    if state.current.unparked.isdisjoint(state.roster.nodes[name].workers):
        state.vaults.give_up([name])
        settle_if_parked(turn)
    else:
        lose_node(turn, name, cause, still_since_s(turn, since_s))


def is_held_up(state: State, node: str) -> bool:
    """Whether a mesh that is being left waits for members on this node, or for its vault: else it
    changes nothing that nobody answers there.
    """
    if state.phase is not Phase.FENCING or node not in state.roster.nodes:
        return False
    is_parked = state.current.unparked.isdisjoint(state.roster.nodes[node].workers)
    return not is_parked or node in state.vaults.awaited


def _note_late_death(turn: Turn, name: str, died_at_s: float | None) -> None:
    """The moment of a death may be known only after the next generation was asked for."""
    state = turn.state
    faults = [state.fault, state.current.fault if state.generations else None]
    for fault in faults:
        if fault is not None and name in fault.lost:
            fault.note_death(died_at_s)
