"""Who makes up the next mesh: those who together hold the newest state, in whole tp groups.

A mesh may leave out some of those that hold state, since it has whole groups only, and of replicas
that share their state whole ZeRO groups. So one holder of each part is kept before anybody else is
taken. What lost: to take the workers by age alone, and to find afterwards that two of them hold the
same shard. Which groups cover all parts at best is a set cover; a greedy choice is made.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from remesh.orchestrator.control.handlers.turn import Turn
from remesh.orchestrator.control.memory.membership import Worker, WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.records import Member, VaultSlot
from remesh.orchestrator.control.words.recovery import (
    StepHeld,
    newest_key,
    newest_whole,
    parts_of,
)
from remesh.orchestrator.plan.placement import local_ranks, place
from remesh.parallel.plan.cut import Cut, Held, Part
from remesh.parallel.plan.layout import Layout

NOTHING = Held()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The next mesh. `spare` counts the workers that could have been in it and are not."""

    layout: Layout
    cut: Cut
    members: tuple[Member, ...]
    spare: int


def choose_mesh(turn: Turn, slots: Sequence[VaultSlot] = ()) -> Choice:
    """The largest mesh of those who are idle, of which there are enough; vaults have these slots.

    Cost: n log n for n workers.
    """
    options, roster = turn.options, turn.state.roster
    idle = roster.in_state(WorkerState.IDLE) + last_holders(turn)
    held = _held(turn.state, idle)
    groups = _groups(turn, idle, held, slots)
    layout = options.shape.layout(len(groups))
    assert layout is not None
    chosen = [worker for group in groups[: layout.dp] for worker in group]
    return Choice(
        layout=layout,
        cut=Cut.of(layout, options.shape.shard_size(layout.dp), options.bucket_elements),
        members=_members(turn, chosen, layout, held),
        spare=len(idle) - len(chosen),
    )


def last_holders(turn: Turn) -> list[Worker]:
    """Workers on nodes that leave, if nothing else holds as new a state: one mesh more takes it."""
    state = turn.state
    leaving = state.roster.in_state(WorkerState.LEAVING) if state.roster.leaving else []
    if not leaving:
        return []
    held = _held(state, leaving)
    others = _held(state, state.roster.in_state(WorkerState.IDLE))
    elsewhere = newest_whole(others.values())
    together = newest_whole([*others.values(), *held.values()])
    known = -1 if elsewhere is None else elsewhere[0]
    if state.checkpoints.newest_step is not None:
        known = max(known, state.checkpoints.newest_step)
    if together is None or together[0] <= known:
        return []
    return [worker for worker in leaving if worker.name in held and held[worker.name][0] > known]


def stays_whole(turn: Turn) -> bool:
    """Whether those members of the present mesh that do not leave hold all of its state."""
    state = turn.state
    life, workers = state.current, state.roster.workers
    staying = (member for member in life.members if not workers[member.worker].leaving)
    held = (life.cut.held_by(life.layout, member.rank) for member in staying)
    return newest_whole((0, one) for one in held) is not None


def _held(state: State, workers: list[Worker]) -> dict[str, StepHeld]:
    """What each of them holds of the run's state, by name. An abandoned timeline counts as none."""
    held = {}
    for worker in workers:
        if worker.held is None or not state.lineage.holds(*worker.held):
            continue
        generation, step = worker.held
        life = state.life(generation)
        assert life is not None
        held[worker.name] = (step, life.cut.held_by(life.layout, worker.held_rank))
    return held


def _groups(
    turn: Turn, idle: list[Worker], held: Mapping[str, StepHeld], slots: Sequence[VaultSlot]
) -> list[list[Worker]]:
    """What could be tp groups, those first that a mesh should take first."""
    state, options = turn.state, turn.options
    tp, anywhere = options.tp, options.allow_cross_node_tp
    counts = Counter(worker.node for worker in idle)
    fitting = [worker for worker in idle if anywhere or counts[worker.node] >= tp]
    kept = _kept(fitting, held, tp, slots)
    steps = {name: step for name, (step, _) in held.items()}
    ordered = state.roster.in_order(fitting, steps, kept, state.last_generation)
    place_of = {worker.name: index for index, worker in enumerate(ordered)}
    by_node: dict[str, list[Worker]] = {}
    for worker in ordered:
        by_node.setdefault(worker.node, []).append(worker)
    groups = [group for here in by_node.values() for group in _cut(here, tp)]
    straddling = list(_cut(ordered, tp)) if anywhere else groups
    if options.shape.num_fitting(len(straddling)) > options.shape.num_fitting(len(groups)):
        return straddling
    groups.sort(key=lambda g: (-sum(kept.get(w.name, 0) for w in g), place_of[g[0].name]))
    return groups


def _cut(workers: list[Worker], size: int) -> Iterator[list[Worker]]:
    for first in range(0, len(workers) - size + 1, size):
        yield workers[first : first + size]


def _kept(
    idle: list[Worker], held: Mapping[str, StepHeld], tp: int, slots: Sequence[VaultSlot]
) -> dict[str, int]:
    """One holder of each part of the newest whole state, on few nodes, and how much it counts.

    Parts with few holders are seen to first; of several holders the one that completes a group.
    One of a part that no vault has outweighs all the others of a group.
    """
    found: dict[tuple[int, Cut], dict[Part, list[Worker]]] = {}
    for worker in idle:
        if worker.name in held:
            step, own = held[worker.name]
            parts = found.setdefault((step, own.cut), {})
            for part in own.parts:
                parts.setdefault(part, []).append(worker)
    stored = parts_of((slot.step, slot.held) for slot in slots)
    live = {key: set(parts) for key, parts in found.items()}
    newest = newest_key(live, stored)
    holders = {} if newest is None else found.get(newest, {})
    also = set() if newest is None else stored.get(newest, set())
    kept: dict[str, int] = {}
    on: Counter[str] = Counter()
    for part, workers in sorted(holders.items(), key=lambda item: (len(item[1]), item[0][::-1])):
        ready = [worker for worker in workers if worker.name in kept or on[worker.node] % tp]
        one = min(ready, key=lambda worker: worker.name not in kept, default=workers[0])
        on[one.node] += one.name not in kept
        kept[one.name] = max(kept.get(one.name, 0), 1 if part in also else tp + 1)
    return kept


def _members(
    turn: Turn, chosen: list[Worker], layout: Layout, held: Mapping[str, StepHeld]
) -> tuple[Member, ...]:
    roster = turn.state.roster
    by_device = {roster.device(worker): worker for worker in chosen}
    placed = place(list(by_device), layout, allow_cross_node_tp=turn.options.allow_cross_node_tp)
    for warning in placed.warnings:
        turn.say(warning)
    numbers = local_ranks(placed.devices)
    members = []
    for rank, device in enumerate(placed.devices):
        worker = by_device[device]
        step, part = held.get(worker.name, (None, NOTHING))
        members.append(
            Member(
                worker=worker.name,
                node=worker.node,
                rank=rank,
                local_rank=numbers[rank],
                at_step=step,
                held=part,
            )
        )
    return tuple(members)
