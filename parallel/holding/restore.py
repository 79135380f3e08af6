"""State from the other ranks: the cheapest way back, and the way to another layout.

What no rank holds comes from snapshots in the memory of nodes, read by those who want it.

Every rank tells which part of the state it holds and at which step. What each lacks then follows
from the layouts alone, on all ranks alike, and one exchange moves it: from replicas to a rank that
joined, or from everybody to everybody when the layout changes.
"""

from collections.abc import Sequence

import torch

from remesh.parallel.groups.collectives import all_gather
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.exchange import ROUND_BYTES, Exchange
from remesh.parallel.holding.shard_state import Holding, ShardState
from remesh.parallel.holding.slot_source import SlotSource
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

    All ranks of the mesh call it with what they held before and the same slots; a holding of
    another step counts for nothing. A rank that has its part already keeps it. What arrives from
    ranks is copied, never received in place: an exchange that is left behind may still write.

    Raises: Cancelled, GroupError; SlotError; ReshardError if all of it is not the whole state. Then
        every holding is as it was.
    """
    if holding is not None and holding.at_step != at_step:
        holding = None
    held = _announce(mesh.world, holding)
    wanted = {rank: target.held.cut.held_by(mesh.layout, rank) for rank in held}
    lacking = {rank: one for rank, one in wanted.items() if held[rank] != one}
    if lacking:
        exchange = Exchange(target.spec, mesh.world, held, lacking, slots, round_bytes)
        exchange.run(holding, target)
    if holding is not None and mesh.world.rank not in lacking:
        _copy(holding.state, target)


def _announce(group: Group, holding: Holding | None) -> dict[int, Held | None]:
    """Which part of the state each rank holds, None for none."""
    own = torch.zeros(len(Held().to_numbers()), dtype=torch.int64)
    if holding is not None:
        own = torch.tensor(holding.state.held.to_numbers())
    told = own.new_empty(group.size * len(own))
    all_gather(group, told, own)
    rows = told.view(group.size, -1).tolist()
    return {rank: Held.from_numbers(row) if any(row) else None for rank, row in enumerate(rows)}


def _copy(source: ShardState, target: ShardState) -> None:
    """Between two memories that are cut alike; nothing where they are one."""
    if source is not target:
        for (_, old), (_, new) in zip(source.fragments(), target.fragments(), strict=True):
            new.copy_(old)
