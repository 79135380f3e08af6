"""Collectives on a group. On a group of one they are copies, or nothing at all.

All of them raise Cancelled or GroupError as Group.run does, and count the bytes of payload that
this rank sends at least: what a ring would send, whatever the backend does.
"""

from collections.abc import Sequence

from torch import Tensor
from torch import distributed as dist

from remesh.parallel.group import Group


def all_reduce_(group: Group, tensor: Tensor) -> None:
    """Sums in place over the ranks. The order of additions is the backend's, fixed at 2 ranks."""
    if group.size > 1:
        sent = 2 * _bytes(tensor) * (group.size - 1) // group.size
        group.run(lambda pg: pg.allreduce([tensor]), sent)


def all_to_all(
    group: Group,
    out: Tensor,
    tensor: Tensor,
    out_sizes: Sequence[int],
    sizes: Sequence[int],
) -> None:
    """Sends the next `sizes[r]` elements of a flat tensor to rank r; zero is a size."""
    if group.size == 1:
        out.copy_(tensor)
        return
    sent = _bytes(tensor) - sizes[group.rank] * tensor.element_size()
    group.run(lambda pg: pg.alltoall_base(out, tensor, list(out_sizes), list(sizes)), sent)


def all_gather(group: Group, out: Tensor, tensor: Tensor) -> None:
    """`out` holds the ranks' tensors, all of one size, one after the other."""
    if group.size == 1:
        out.copy_(tensor.view_as(out))
        return
    sent = _bytes(tensor) * (group.size - 1)
    group.run(lambda pg: pg._allgather_base(out, tensor), sent)  # noqa: SLF001 - unregistered


def broadcast_(group: Group, tensor: Tensor, source: int) -> None:
    """Every rank's tensor becomes the one of the rank `source`."""
    if group.size == 1:
        return
    options = dist.BroadcastOptions()
    options.rootRank = source
    sent = _bytes(tensor) if group.rank == source else 0
    group.run(lambda pg: pg.broadcast([tensor], options), sent)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
