"""What neighbours in a pipeline say to each other: one group for each pair and direction.

Messages of one direction come in the order sent, and those of the two directions cannot wait for
each other, whatever order the two ranks begin them in: no tags are needed, which NCCL would not
have. A group of all ranks of a pipeline was the alternative; opposite messages of a pair then block
each other on NCCL unless both sides begin them at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from remesh.parallel.groups.group import Group, Pending, PendingOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe:
    """The groups with one neighbour: the one in which this rank sends, and that of the way back."""

    out: Group
    back: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Where a rank stands in a ring; `pipe` leads to the next rank and comes from the one before.

    A rank alone is a ring without one.
    """

    rank: int = 0
    size: int = 1
    pipe: Pipe | None = None

    def passed(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """What each rank has, and which that is: this one, the one before it, and so on round.

        The next one is under way while one is used, which is gone after it: there is room for two
        beside this rank's own. Raises: Cancelled, GroupError.
        """
        held, spare = own, None
        for step in range(self.size - 1):
            assert self.pipe
            arriving = torch.empty_like(own) if spare is None else spare
            operations = exchange([(self.pipe, held)], [(self.pipe, arriving)])
            yield (self.rank - step) % self.size, held
            for operation in operations:
                operation.wait()
            held, spare = arriving, None if held is own else held
        yield (self.rank + 1) % self.size, held


def exchange(
    sent: Sequence[tuple[Pipe, Tensor]], received: Sequence[tuple[Pipe, Tensor]]
) -> list[PendingOperation]:
    """Starts all of these messages; one operation for each, in the order given.

    The tensors, contiguous ones, belong to the operations until they have been waited for. What is
    sent is received by a tensor of the same size and type at the other end.

    Raises: Cancelled, GroupError.
    """
    arriving = [_start(pipe.back, tensor, sends=False) for pipe, tensor in received]
    return [*(_start(pipe.out, tensor, sends=True) for pipe, tensor in sent), *arriving]


def _start(group: Group, tensor: Tensor, *, sends: bool) -> PendingOperation:
    source = group.rank if sends else 1 - group.rank
    return group.start(
        lambda process_group: _message(process_group, tensor, source, sends=sends),
        tensor.nbytes if sends else 0,
    )


def _message(
    process_group: dist.ProcessGroup, tensor: Tensor, source: int, *, sends: bool
) -> Pending:
    """On gloo a broadcast to the one other rank: a wait for a message of its own cannot be left and
    begun again, since it closes all connections of the group when its time is up.
    """
    if not tensor.is_cuda:
        options = dist.BroadcastOptions()
        options.rootRank = source
        return process_group.broadcast([tensor], options)
    if sends:
        return process_group.send([tensor], 1 - source, 0)
    return process_group.recv([tensor], source, 0)
