"""State from the other ranks: the cheapest way back, and the way to another layout.

What no rank holds comes from snapshots in the memory of nodes. Each is read by one rank, which from
then on holds it like any other part; what lost: every rank reads what it lacks out of every slot,
for which each has to be told of all of them.

Every rank tells which parts of the state it holds at the step. What each lacks then follows from
the layouts alone, on all ranks alike, and one exchange moves it: from replicas to a rank that
joined, or from everybody to everybody when the layout changes.
"""

from collections.abc import Sequence

import torch

from remesh.parallel.groups.collectives import all_gather
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.exchange import ROUND_BYTES, StateExchange
from remesh.parallel.holding.shard_state import Holding, ShardState
from remesh.parallel.holding.slot_source import SlotSource, read_slot
from remesh.parallel.optim.optimizer import StateMemory
from remesh.parallel.plan.cut import Held


def share_state(
    target: ShardState,
    mesh: Mesh,
    holding: Holding | None,
    at_step: int,
    slots: Sequence[SlotSource] = (),
    *,
    round_bytes: int = ROUND_BYTES,
) -> None:
    """Fills `target` with the state at `at_step`, of which the holdings of all ranks are parts.

    All ranks of the mesh call it with what they held before, and each with the slots that it reads;
    a holding of another step counts for nothing. A rank that has its part already keeps it. What
    arrives from ranks is copied, never received in place: an exchange that is left behind may still
    write.

    Raises: Cancelled, GroupError; SlotError; ReshardError if all of it is not the whole state. Then
        every holding is as it was.
    """
    if holding is not None and holding.at_step != at_step:
        holding = None
    own = [] if holding is None else [holding.state]
    parts = [state.held for state in own] + [slot.held for slot in slots]
    room = _announce_room(mesh.world, parts)
    own += [_read(slot, target, mesh.world) for slot in slots]
    held = _announce(mesh.world, own, room)
    wanted = {rank: target.held.cut.held_by(mesh.layout, rank) for rank in held}
    lacking = {rank: one for rank, one in wanted.items() if one not in held[rank]}
    if lacking:
        StateExchange(target.spec, mesh.world, held, lacking, round_bytes).run(own, target)
    if mesh.world.rank not in lacking:
        _copy(next(state for state in own if state.held == target.held), target)


def _read(slot: SlotSource, target: ShardState, group: Group) -> ShardState:
    """What is in the slot, in the memory that it is wanted in, if this rank wants just that.

    Nobody has sent anything yet, if it cannot be read.
    """
    state = target
    if slot.held != target.held:
        state = ShardState(target.spec, slot.held, StateMemory(device=group.device))
    read_slot(slot, dict(state.fragments()))
    return state


def _announce_room(group: Group, parts: Sequence[Held]) -> tuple[int, int]:
    """How many parts of the state a rank is about to hold at most, and in how many numbers each."""
    widths = [len(part.to_numbers()) for part in parts]
    own = torch.tensor([len(parts), max(widths, default=0)])
    told = own.new_empty(group.size * len(own))
    all_gather(group, told, own)
    most, width = told.view(group.size, -1).amax(0).clamp(min=1).tolist()
    return most, width


def _announce(
    group: Group, own: Sequence[ShardState], room: tuple[int, int]
) -> dict[int, list[Held]]:
    """Which parts of the state each rank holds: at most so many, in so many numbers each."""
    rows = torch.zeros(*room, dtype=torch.int64)
    for row, state in zip(rows, own, strict=False):
        numbers = state.held.to_numbers()
        row[: len(numbers)] = torch.tensor(numbers)
    told = rows.new_empty(group.size * rows.numel())
    all_gather(group, told, rows.view(-1))
    found = told.view(group.size, *rows.shape).tolist()
    return {
        rank: [Held.from_numbers(row) for row in parts if any(row)]
        for rank, parts in enumerate(found)
    }


def _copy(source: ShardState, target: ShardState) -> None:
    """Between two memories that are cut alike; nothing where they are one."""
    if source is not target:
        for (_, old), (_, new) in zip(source.fragments(), target.fragments(), strict=True):
            new.copy_(old)
