"""Which part of the state this rank writes: each byte is written once, by one of those who hold it.

Who holds what follows from the layout, so that no rank asks another.
"""

from collections import defaultdict

from torch import Tensor

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import COUNT, ShardState
from remesh.parallel.plan.shares import is_cut_by_columns, is_of_experts
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.panels import panels
from remesh.parallel.state.reshard import HeldFragment
from remesh.parallel.state.writers import writes


def own_part(state: ShardState, mesh: Mesh) -> list[tuple[Fragment, Tensor]]:
    """The boxes that this rank writes, as views of the state: copy them before the next step.

    Loads of ranks that hold the same differ by at most 5 %. Tensors that some tensor-parallel
    degree cuts by columns are written as panels, so that its ranks need not read them whole.
    """
    views = state.counted()
    holders = {name: _holders(mesh, state, name) for name in {f.name for f, _ in views}}
    held = [HeldFragment(fragment=f, holders=holders[f.name]) for f, _ in views]
    by_name: dict[str, list[tuple[Fragment, Tensor]]] = defaultdict(list)
    for fragment, view in views:
        by_name[fragment.name].append((fragment, view))
    return [
        (box, view[fragment.slices(box)])
        for written in writes(held, mesh.world.rank)
        for fragment, view in by_name[written.name]
        if fragment.meet(written) == written
        for box in (panels(written) if is_cut_by_columns(written.name) else (written,))
    ]


def held_part(state: ShardState) -> list[tuple[Fragment, Tensor]]:
    """The boxes that this rank writes if one rank of each place writes, as `own_part` has them.

    It needs no mesh: each tensor is written by the first of the places that hold it.
    """
    number, _ = state.held.place
    return [
        (box, view[fragment.slices(box)])
        for fragment, view in state.counted()
        if fragment.num_elements and _is_first(state, fragment.name, number)
        for box in (panels(fragment) if is_cut_by_columns(fragment.name) else (fragment,))
    ]


def _is_first(state: ShardState, tensor: str, number: int) -> bool:
    if tensor == COUNT:
        return number == 0
    held = state.held
    if held.cut.expert_parts > 1 and not is_of_experts(tensor) and held.position >= held.cut.shards:
        return False
    return state.tensor_holders(tensor)[0] == state.held.tensor


def _holders(mesh: Mesh, state: ShardState, name: str) -> tuple[int, ...]:
    """The ranks of the world that hold the same fragments of this tensor, in ascending order."""
    if name == COUNT:
        return tuple(range(mesh.world.size))
    layout, held = mesh.layout, state.held
    ranks = layout.data(mesh.world.rank)
    if held.cut.expert_parts > 1 and is_of_experts(name):
        ranks = ranks[held.expert :: held.cut.expert_parts][
            held.expert_shard :: held.cut.expert_shards
        ]
    else:
        ranks = ranks[held.shard :: held.cut.shards]
    return tuple(
        layout.tensor(replica)[holder] for replica in ranks for holder in state.tensor_holders(name)
    )
