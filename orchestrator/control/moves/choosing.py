"""Who makes up the next mesh: those who together hold the newest state, in whole units.

A mesh may leave out some of those that hold state, since it has whole units only, and of replicas
that share their state whole ZeRO groups. So one holder of each part is kept before anybody else is
taken. What lost: to take the workers by age alone, and to find afterwards that two of them hold the
same shard. Which units cover all parts at best is a set cover; a greedy choice is made.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from remesh.orchestrator.control.memory.membership import Worker, WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.records import Member, VaultSlot
from remesh.orchestrator.control.words.recovery import (
    StepHeld,
    newest_key,
    newest_whole,
    parts_of,
)
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.placement import keeping_stages, local_ranks, place
from remesh.orchestrator.plan.rung import Rung, Unit
from remesh.orchestrator.plan.spreading import spread
from remesh.parallel.plan.cut import Cut, Held, Part

NOTHING = Held()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The next mesh. `spare` counts the workers that could have been in it and are not."""

    rung: Rung
    members: tuple[Member, ...]
    spare: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """Who could be in the next mesh, what each of them holds, and what vaults have."""

    idle: list[Worker]
    held: Mapping[str, StepHeld]
    slots: Sequence[VaultSlot]


def choose_mesh(turn: Turn, slots: Sequence[VaultSlot] = ()) -> Choice:
    """The mesh to take of those who are idle, of which there are enough; vaults have these slots.

    One of the bits of the present mesh is taken instead where only that keeps the newest state.

    Cost: n log n for n workers and each kind of unit, twice where bits would change.
    """
    idle = turn.state.roster.in_state(WorkerState.IDLE) + last_holders(turn)
    candidates = _Candidates(idle=idle, held=states_held(turn.state, idle), slots=slots)
    choice = _choice(turn, candidates)
    assert choice is not None
    same, saved = turn.ladder.of_bits(turn.bit_key), turn.state.checkpoints.newest_step
    if choice.rung.bit_key == turn.bit_key or same is None or _keeps_all(choice, candidates, saved):
        return choice
    other = _choice(_trying(turn, same), candidates)
    return other if other is not None and _keeps_all(other, candidates) else choice


def takes_all_along(turn: Turn, ladder: Ladder) -> bool:
    """Whether the mesh that members and idle workers would make up on this ladder, were all to
    stand at a step boundary now, holds as much of the state as all of them, and as those who leave.

    Cost: as `choose_mesh`.
    """
    state = turn.state
    workers, life = state.roster.workers, state.current
    idle, held = state.roster.in_state(WorkerState.IDLE), {}
    for member in life.members:
        worker = workers.get(member.worker)
        if worker is None or worker.state is not WorkerState.MEMBER:
            continue
        held[worker.name] = (state.step, life.rung.held_by(member.rank))
        if not worker.leaving:
            idle.append(worker)
    parked = idle + state.roster.in_state(WorkerState.LEAVING)
    held |= states_held(state, [worker for worker in parked if worker.name not in held])
    candidates = _Candidates(idle=idle, held=held, slots=_slots(state))
    choice = _choice(_trying(turn, ladder), candidates)
    return choice is not None and _keeps_all(choice, candidates)


def _trying(turn: Turn, ladder: Ladder) -> Turn:
    """What is decided on it on another ladder, of which nobody hears."""
    return Turn(options=turn.options, state=turn.state, now_s=turn.now_s, tried=ladder)


def _keeps_all(choice: Choice, candidates: _Candidates, saved: int | None = None) -> bool:
    """Whether these members and the vaults hold as new a state as all who could be members, or a
    checkpoint does.
    """
    held = candidates.held
    taken = [held[member.worker] for member in choice.members if member.worker in held]
    stored = parts_of((slot.step, slot.held) for slot in candidates.slots)
    found, there = (newest_key(parts_of(one), stored) for one in (taken, held.values()))
    steps = [-1 if key is None else key[0] for key in (found, there)]
    return steps[0] == steps[1] or (saved is not None and saved >= steps[1])


def _choice(turn: Turn, candidates: _Candidates) -> Choice | None:
    """None if they are too few."""
    units = {unit: _units(turn, unit, candidates) for unit in turn.ladder.units}
    rung = turn.pick(lambda unit: len(units[unit]))
    if rung is None:
        return None
    found = units[rung.unit]
    if rung.stages > 1:
        found = _spread(turn, candidates, rung)
    chosen = [worker for unit in found[: rung.num_units] for worker in unit]
    return Choice(
        rung=rung,
        members=_members(turn, chosen, rung, candidates.held),
        spare=len(candidates.idle) - len(chosen),
    )


def last_holders(turn: Turn) -> list[Worker]:
    """Workers on nodes that leave, if no mesh without them, with what vaults hold, has as new a
    state: one more takes it.

    None of those on trial: a mesh with them breaks, whatever they hold.

    Cost: as `choose_mesh`.
    """
    state = turn.state
    found = state.roster.in_state(WorkerState.LEAVING) if state.roster.leaving else []
    leaving = [worker for worker in found if worker.node not in state.suspicions.on_trial]
    held = states_held(state, leaving)
    if not held:
        return []
    idle = state.roster.in_state(WorkerState.IDLE)
    others = states_held(state, idle)
    saved = state.checkpoints.newest_step
    known = -1 if saved is None else saved
    slots = _slots(state)
    stored = parts_of((slot.step, slot.held) for slot in slots)
    together = newest_key(parts_of([*others.values(), *held.values()]), stored)
    if together is None or together[0] <= known:
        return []
    taken = _taken(turn, _Candidates(idle=idle, held=others, slots=slots))
    elsewhere = newest_key(parts_of(taken), stored)
    known = known if elsewhere is None else max(known, elsewhere[0])
    if together[0] <= known:
        return []
    return [worker for worker in leaving if worker.name in held and held[worker.name][0] > known]


def _slots(state: State) -> tuple[VaultSlot, ...]:
    """What vaults have told since the newest mesh was left."""
    return tuple(state.vaults.slots(state.lineage, state.heard_step))


def _taken(turn: Turn, candidates: _Candidates) -> list[StepHeld]:
    """What those hold whom a mesh of these has; while they are too few, whom it may have: each on a
    node with enough for a unit.
    """
    idle, held = candidates.idle, candidates.held
    choice = _choice(_trying(turn, turn.ladder), candidates)
    if choice is not None:
        return [held[member.worker] for member in choice.members if member.worker in held]
    placed = {one.name for unit in turn.ladder.units for one in _fitting(unit, idle)}
    return [held[name] for name in held if name in placed]


def _fitting(unit: Unit, idle: list[Worker]) -> list[Worker]:
    """Those that can be part of such a unit."""
    if not unit.on_one_node:
        return idle
    counts = Counter(worker.node for worker in idle)
    return [worker for worker in idle if counts[worker.node] >= unit.workers]


def stays_whole(turn: Turn) -> bool:
    """Whether those members of the present mesh that do not leave hold all of its state."""
    state = turn.state
    life, workers = state.current, state.roster.workers
    staying = (member for member in life.members if not workers[member.worker].leaving)
    held = (life.rung.held_by(member.rank) for member in staying)
    return newest_whole((0, one) for one in held) is not None


def states_held(state: State, workers: Sequence[Worker]) -> dict[str, StepHeld]:
    """What each of them holds of the run's state, by name. An abandoned timeline counts as none."""
    held = {}
    for worker in workers:
        if worker.held is None or not state.lineage.holds(*worker.held):
            continue
        generation, step = worker.held
        life = state.life(generation)
        assert life is not None
        held[worker.name] = (step, life.rung.held_by(worker.held_rank))
    return held


def _units(
    turn: Turn, unit: Unit, candidates: _Candidates, *, stages: int = 1
) -> list[list[Worker]]:
    """What could be such units, those first that a mesh should take first.

    A pipeline takes so many of them.
    """
    state, idle, held = turn.state, candidates.idle, candidates.held
    size, anywhere = unit.workers, not unit.on_one_node
    fitting = _fitting(unit, idle)
    holders = _Holders(
        idle=fitting,
        held=held,
        domains={worker.node: state.roster.nodes[worker.node].domain for worker in fitting},
        sizes=(size, size * stages),
    )
    kept = _kept(holders, candidates.slots)
    steps = {name: step for name, (step, _) in held.items()}
    ordered = state.roster.in_order(fitting, steps, kept, state.last_generation)
    place_of = {worker.name: index for index, worker in enumerate(ordered)}
    by_node: dict[str, list[Worker]] = {}
    for worker in ordered:
        by_node.setdefault(worker.node, []).append(worker)
    units = [group for here in by_node.values() for group in _cut(here, size)]
    straddling = list(_cut(ordered, size)) if anywhere else units
    if turn.ladder.gains(unit, len(units), len(straddling)):
        return straddling
    units.sort(key=lambda u: (-sum(kept.get(w.name, 0) for w in u), place_of[u[0].name]))
    return units


def _spread(turn: Turn, candidates: _Candidates, rung: Rung) -> list[list[Worker]]:
    """The units of pipelines: who holds state first, and the others over the failure domains."""
    units = _units(turn, rung.unit, candidates, stages=rung.stages)
    nodes, held = turn.state.roster.nodes, candidates.held
    holding = sum(any(worker.name in held for worker in unit) for unit in units)
    domains = [nodes[unit[0].node].domain for unit in units]
    return [units[at] for at in spread(domains, rung.num_units, rung.stages, holding)]


def _cut(workers: list[Worker], size: int) -> Iterator[list[Worker]]:
    for first in range(0, len(workers) - size + 1, size):
        yield workers[first : first + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holders:
    """Who may hold something, and of how many workers a unit and a pipeline are."""

    idle: list[Worker]
    held: Mapping[str, StepHeld]
    domains: Mapping[str, str]
    sizes: tuple[int, int]


def _kept(among: _Holders, slots: Sequence[VaultSlot]) -> dict[str, int]:
    """One holder of each part of the newest whole state, on few nodes, and how much it counts.

    Parts with few holders are seen to first; of several holders the one that completes a unit,
    then the one that completes a pipeline on its node, or in its failure domain. One of a part
    that no vault has outweighs all the others of a unit.
    """
    size, pipeline = among.sizes
    found: dict[tuple[int, Cut], dict[Part, list[Worker]]] = {}
    for worker in among.idle:
        if worker.name in among.held:
            step, own = among.held[worker.name]
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
    in_domain: Counter[str] = Counter()

    def completes(worker: Worker) -> tuple[bool, ...]:
        here, there = on[worker.node], in_domain[among.domains[worker.node]]
        left = (here % size, here % pipeline, there % pipeline)
        return (worker.name in kept, *(number > 0 for number in left))

    for part, workers in sorted(holders.items(), key=lambda item: (len(item[1]), item[0][::-1])):
        one = max(workers, key=completes)
        if one.name not in kept:
            on[one.node] += 1
            in_domain[among.domains[one.node]] += 1
        kept[one.name] = max(kept.get(one.name, 0), 1 if part in also else size + 1)
    return kept


def _members(
    turn: Turn, chosen: list[Worker], rung: Rung, held: Mapping[str, StepHeld]
) -> tuple[Member, ...]:
    roster = turn.state.roster
    by_device = {roster.device(worker): worker for worker in chosen}
    placed = place(list(by_device), rung)
    for warning in placed.warnings:
        turn.say(warning)
    devices = placed.devices
    if rung.stages > 1:
        stages = _stages_held(rung, [by_device[device].name for device in devices], held)
        devices = tuple(devices[rank] for rank in keeping_stages(rung, stages))
    numbers = local_ranks(devices)
    members = []
    for rank, device in enumerate(devices):
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


def _stages_held(
    rung: Rung, names: Sequence[str], held: Mapping[str, StepHeld]
) -> list[int | None]:
    """Which stage of this mesh's pipelines each worker has at the newest step, if it has one."""
    newest = max((held[name][0] for name in names if name in held), default=-1)
    found = (held.get(name, (None, NOTHING)) for name in names)
    return [rung.stage_of(own) if step == newest else None for step, own in found]
