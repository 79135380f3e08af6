"""Collectives on a group. On a group of one they are copies, or nothing at all.

All of them raise Cancelled or GroupError as Operation.wait does, and count the bytes of payload
that this rank sends at least: what a ring would send, whatever the backend does. Those that are
called `start_` return at once; their tensors may be used after `wait`.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch import distributed as dist

from remesh.parallel.groups.group import Group, PendingOperation

Op = Literal["sum", "max"]

_OPS = {"sum": dist.ReduceOp(dist.ReduceOp.SUM), "max": dist.ReduceOp(dist.ReduceOp.MAX)}


def all_reduce_(group: Group, tensor: Tensor, op: Op = "sum") -> None:
    """Sums in place over the ranks. The order of additions is the backend's, fixed at 2 ranks."""
    start_all_reduce_(group, tensor, op).wait()


def start_all_reduce_(group: Group, tensor: Tensor, op: Op = "sum") -> PendingOperation:
    if group.size == 1:
        return PendingOperation()
    options = dist.AllreduceOptions()
    options.reduceOp = _OPS[op]
    sent = 2 * tensor.nbytes * (group.size - 1) // group.size
    return group.start(lambda pg: pg.allreduce([tensor], options), sent)


def start_reduce_scatter(group: Group, out: Tensor, tensor: Tensor) -> PendingOperation:
    """On gloo the parts are exchanged and added here, which takes a third of its own one's time."""
    if group.size == 1:
        out.copy_(tensor.view_as(out))
        return PendingOperation()
    if out.is_cuda:
        options, sent = dist.ReduceScatterOptions(), out.nbytes * (group.size - 1)
        return group.start(lambda pg: pg._reduce_scatter_base(out, tensor, options), sent)  # noqa: SLF001 - unregistered
    parts = torch.empty_like(tensor).view(group.size, -1)
    sizes = [parts.shape[1]] * group.size
    operation = start_all_to_all(group, parts.view(-1), tensor.view(-1), sizes, sizes)
    return operation.then(lambda: out.copy_(_add_up(parts).view_as(out)))


def start_all_to_all(
    group: Group,
    out: Tensor,
    tensor: Tensor,
    out_sizes: Sequence[int],
    sizes: Sequence[int],
) -> PendingOperation:
    if group.size == 1:
        out.copy_(tensor)
        return PendingOperation()
    sent = (sum(sizes) - sizes[group.rank]) * tensor.element_size()
    return group.start(lambda pg: pg.alltoall_base(out, tensor, list(out_sizes), list(sizes)), sent)


def all_gather(group: Group, out: Tensor, tensor: Tensor) -> None:
    """`out` holds the ranks' tensors, all of one size, one after the other."""
    start_all_gather(group, out, tensor).wait()


def start_all_gather(group: Group, out: Tensor, tensor: Tensor) -> PendingOperation:
    """On gloo one broadcast from each rank, in place: its own one gathers into fresh memory and
    takes three times as long.
    """
    parts = out.view(group.size, -1)
    if parts[group.rank].data_ptr() != tensor.data_ptr():
        parts[group.rank].copy_(tensor.view(-1))
    if group.size == 1:
        return PendingOperation()
    sent = tensor.nbytes * (group.size - 1)
    if out.is_cuda:
        return group.start(lambda pg: pg._allgather_base(out, tensor), sent)  # noqa: SLF001 - unregistered
    return group.start(lambda pg: [_broadcast(pg, parts[r], r) for r in range(group.size)], sent)


def gather_bytes(group: Group, message: bytes) -> list[bytes]:
    """What each rank says, messages of one size: what ranks agree by, which is no payload."""
    said = torch.frombuffer(bytearray(message * group.size), dtype=torch.uint8)
    heard = torch.empty_like(said)
    sizes = [len(message)] * group.size
    group.run(lambda pg: pg.alltoall_base(heard, said, sizes, sizes), 0)
    return [bytes(one.tolist()) for one in heard.view(group.size, -1)]


def all_told(group: Group, row: Tensor) -> Tensor:
    """The rows of all ranks, (ranks, row): few numbers, by one message from each rank to each."""
    if row.is_cuda:
        rows = row.new_empty(group.size, len(row))
        start_all_gather(group, rows.view(-1), row).wait()
        return rows
    numbers = row.tolist()
    return torch.tensor(told_numbers(group, numbers, row.nbytes * (group.size - 1)))


def told_numbers(group: Group, numbers: Sequence[int], sent_bytes: int) -> list[list[int]]:
    """What each rank says, as many integers: by the group's lines if it has any.

    `sent_bytes` count as what this rank sends.
    """
    if group.can_tell(len(numbers)):
        return group.tell(numbers, sent_bytes)
    said = torch.tensor(numbers, dtype=torch.int64).repeat(group.size)
    heard = torch.empty_like(said)
    sizes = [len(numbers)] * group.size
    group.start(lambda pg: pg.alltoall_base(heard, said, sizes, sizes), sent_bytes).wait()
    rows: list[list[int]] = heard.view(group.size, -1).tolist()
    return rows


def _broadcast(process_group: dist.ProcessGroup, tensor: Tensor, source: int) -> dist.Work:
    options = dist.BroadcastOptions()
    options.rootRank = source
    return process_group.broadcast([tensor], options)


def _add_up(parts: Tensor) -> Tensor:
    """Rows added in place by an aligned binary tree."""
    while len(parts) > 1:
        pairs = len(parts) // 2 * 2
        parts[0:pairs:2].add_(parts[1:pairs:2])
        parts = parts[0::2]
    return parts[0]
