"""Starting, losing and giving up workers, and deciding when there are enough for a mesh."""

from collections.abc import Sequence

from remesh.orchestrator.control.memory.generations import Fault
from remesh.orchestrator.control.memory.membership import NodeState, Worker, WorkerState
from remesh.orchestrator.control.moves.choosing import takes_all_along
from remesh.orchestrator.control.moves.leaving import mistrusted_as
from remesh.orchestrator.control.moves.next_mesh import (
    enough,
    form_or_wait,
    num_fitting,
    waiting_reason,
)
from remesh.orchestrator.control.moves.transitions import (
    awaits_files,
    drain,
    leave,
    note_sign,
    over_budget,
)
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import EndWorker, StartWorker
from remesh.orchestrator.control.words.phases import ENDED, Phase
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.user_text import count


def refill(turn: Turn) -> None:
    """Starts workers until members and spares are complete or the nodes are full.

    And on more nodes than these take, where a mesh may not be without them.

    Where a node is warm a start is a fork, which nobody feels: it comes at once. Anywhere else it
    takes its share of the processors: it waits until the mesh, if there is one, has made a step
    again, or, where a run that wants spares has none left, until it has its state back.
    """
    state = turn.state
    if not state.started or state.phase in ENDED:
        return
    if state.parting is not None and state.phase is not Phase.WAITING:
        return
    _fill(turn, turn.ladder)
    if state.next_ladder is not None:
        _fill(turn, state.next_ladder.ladder)


def _fill(turn: Turn, ladder: Ladder) -> None:
    """Those of the largest mesh of this ladder that there is room for."""
    state, roster = turn.state, turn.state.roster
    flight = ladder.flight_for(roster.slot_units, at_least=turn.at_least, bit_key=turn.bit_key)
    places = roster.places(flight.most_workers, flight.unit, turn.options.spares)
    recovers = _recovers(turn)
    for node in places + roster.unmanned(turn.options.min_nodes, places):
        if recovers and not roster.nodes[node].warm:
            continue
        worker = roster.start(node)
        state.deadlines.starting[worker.name] = turn.now_s + _start_s(turn, node)
        turn.do(StartWorker(worker=worker.name, node=node))


def _recovers(turn: Turn) -> bool:
    """Whether the processors are wanted for a mesh that ends, or comes to be."""
    state = turn.state
    if state.phase is not Phase.RUNNING:
        return state.phase not in (Phase.WAITING, Phase.DRAINING)
    short = turn.options.spares > 0 and not state.roster.num_idle
    return not state.current.has_steps and not short


def _start_s(turn: Turn, node: str) -> float:
    return turn.timers.start_s(turn.state.roster.nodes[node].late_starts)


def give_up_late(turn: Turn, names: Sequence[str]) -> None:
    """Ends workers that did not start in time: one failure, however many.

    Their node is busy. The next ones get twice the time there, and fewer start at once.
    """
    state, roster = turn.state, turn.state.roster
    late = [roster.workers[name] for name in names]
    for worker in late:
        why = f"did not start within {_start_s(turn, worker.node):.0f} s"
        if worker is late[0]:
            others = f"and {count(len(late) - 1, 'other')} " if late[1:] else ""
            state.start_trouble = f"{worker.name} on {worker.node} {others}{why}"
        end_worker(turn, worker, why)
    for node in sorted({worker.node for worker in late}):
        roster.nodes[node].late_starts += 1
    if late:
        state.budget.count(state.start_trouble, state.step)
        over_budget(turn)


def form_or_grow(turn: Turn) -> None:
    """Forms the first mesh, or drains for a larger one or one with the job's own degrees, once
    waiting longer brings nothing.

    That is when the mesh would be as large as it can get, or when for a while (longer if some are
    still starting) no further worker has become ready.
    """
    state = turn.state
    state.deadlines.gather_s = None
    members, size = state.roster.num_members, num_fitting(turn)
    if not _better_mesh_wanted(turn):
        return
    gather_s = state.last_ready_s + turn.timers.gather_s(starting=state.roster.num_starting > 0)
    if size < turn.size(state.roster.slot_units) and turn.now_s < gather_s:
        state.deadlines.gather_s = gather_s
        if state.phase is Phase.WAITING:
            state.reason = waiting_reason(turn)
    elif state.phase is Phase.WAITING:
        form_or_wait(turn)
    else:
        grows = f"growing from {members} to {count(size, 'worker')}"
        reason = grows if size > members else "going back to the degrees of the job"
        save = not takes_all_along(turn, turn.ladder)
        if not save or not state.checkpoints.stalled:
            drain(turn, save=save, reason=reason)


def lose_worker(turn: Turn, worker: Worker, cause: str, died_at_s: float | None) -> None:
    """A worker is dead: its place is filled again, its generation ends."""
    turn.state.roster.remove(worker)
    if worker.state is WorkerState.MEMBER:
        _hurt(turn, worker.node)
    _after_loss(turn, [worker], f"{worker.name} on {worker.node} was lost: {cause}", died_at_s)


def lose_node(turn: Turn, name: str, cause: str, died_at_s: float | None) -> None:
    """A node is dead, and all its workers with it. Unless it had said so, its host is suspect."""
    state = turn.state
    node = state.roster.nodes[name]
    if node.state not in (NodeState.LEAVING, NodeState.DRAINED):
        key = mistrusted_as(turn, node)
        state.quarantine.note_loss(key, turn.now_s, turn.options.patience_s)
    state.vaults.lose(name)
    lost = state.roster.remove_node(name)
    names = ", ".join(worker.name for worker in lost)
    text = f"node {name} was lost{f' with {names}' if names else ''}: {cause}"
    total = state.budget.total
    _after_loss(turn, lost, text, died_at_s)
    if state.budget.total > total:
        state.budget.nodes[name] = None


def give_up(turn: Turn, worker: Worker, why: str) -> bool:
    """Has a worker killed. It is lost once its death is seen, or soon after. False: run over."""
    state = turn.state
    text = f"{worker.name} on {worker.node} {why}"
    if worker.state is WorkerState.MEMBER:
        _hurt(turn, worker.node)
        _count_loss(turn, note_sign(turn, text), [worker], text)
    elif worker.state is WorkerState.STARTING:
        state.budget.count(text, state.step)
    else:
        _count_parked(turn, [worker], text)
    end_worker(turn, worker, why)
    return not over_budget(turn)


def end_worker(turn: Turn, worker: Worker, why: str) -> None:
    """It is lost once its death is seen, or soon after."""
    state = turn.state
    state.roster.move(worker, WorkerState.ENDING)
    state.deadlines.forget(worker.name)
    state.deadlines.ending[worker.name] = turn.now_s + turn.timers.end_s
    turn.say(f"ending {worker.name} on {worker.node}: it {why}")
    turn.do(EndWorker(worker=worker.name, node=worker.node, reason=why))


def _better_mesh_wanted(turn: Turn) -> bool:
    state = turn.state
    if state.phase is Phase.WAITING:
        pause_s = state.deadlines.pause_s
        if pause_s is not None and pause_s > turn.now_s:
            return False
        state.reason = waiting_reason(turn)
        return enough(turn)
    if state.phase is not Phase.RUNNING:
        return False
    growing = turn.ladder.improves(
        state.roster.ready_units,
        state.current.rung,
        state.roster.num_members,
        at_least=turn.at_least,
    )
    return growing and state.parting is None and state.step < turn.options.steps


def _hurt(turn: Turn, node: str) -> None:
    if node in turn.state.roster.nodes:
        turn.state.roster.nodes[node].hurt_in = turn.state.last_generation


def _after_loss(turn: Turn, lost: list[Worker], text: str, died_at_s: float | None) -> None:
    state = turn.state
    for worker in lost:
        state.deadlines.forget(worker.name)
    needed = [worker for worker in lost if _is_needed(turn, worker)]
    if needed:
        _note_loss(turn, needed, text, died_at_s)
    elif any(worker.state is WorkerState.STARTING for worker in lost):
        state.start_trouble = text
        state.budget.count(text, state.step)
    elif any(worker.state in (WorkerState.IDLE, WorkerState.LEAVING) for worker in lost):
        _count_parked(turn, lost, text)
    if over_budget(turn):
        return
    if needed:
        leave(turn, text)
    elif any(worker.state is not WorkerState.ENDING for worker in lost):
        turn.say(text)
    if state.phase not in ENDED:
        form_or_grow(turn)


def is_awaited(turn: Turn, worker: Worker) -> bool:
    """Whether it has parked before the others, with a part that the next mesh is to start from."""
    state = turn.state
    draining = state.phase is Phase.DRAINING and not state.current.saving
    return draining and _holds(turn, worker)


def _is_needed(turn: Turn, worker: Worker) -> bool:
    """Whether it may still train, or has parked and not left its part of the last checkpoint, or
    holds one for the next mesh.
    """
    if not turn.state.generations:
        return False
    trains = worker.name in turn.state.current.unparked
    return trains or is_awaited(turn, worker) or awaits_files(turn, worker.name)


def _holds(turn: Turn, worker: Worker) -> bool:
    """Whether it has parked with its part of the newest state."""
    held = worker.held
    return held is not None and held[0] == turn.state.current.generation


def _note_loss(turn: Turn, lost: list[Worker], text: str, died_at_s: float | None) -> None:
    fault = note_sign(turn, text)
    fault.lost.update(worker.name for worker in lost)
    fault.lost.update(worker.node for worker in lost)
    if any(worker.state is not WorkerState.ENDING for worker in lost):
        _count_loss(turn, fault, lost, text)
        fault.note_death(died_at_s)
    for worker in lost:
        turn.state.current.drop(worker.name)


def _count_parked(turn: Turn, lost: list[Worker], text: str) -> None:
    """Of those that wait for the next mesh: one that dies each time must not go on for ever.

    The death of a spare beside a mesh costs nothing, that of one with a part of the state steps.
    """
    state = turn.state
    if state.fault is not None:
        _count_loss(turn, state.fault, lost, text)
    elif state.phase is Phase.WAITING and any(_holds(turn, worker) for worker in lost):
        _count_loss(turn, note_sign(turn, text), lost, text)
    elif state.phase is Phase.WAITING:
        state.budget.count(text, state.step)


def _count_loss(turn: Turn, fault: Fault, lost: list[Worker], text: str) -> None:
    """However many members are lost before the next mesh forms, it is one failure.

    A node that leaves earlier than it said is none.
    """
    announced = all(worker.leaving for worker in lost)
    if not fault.losses and not announced:
        turn.state.budget.count(text, turn.state.step)
    fault.note_loss(text)
