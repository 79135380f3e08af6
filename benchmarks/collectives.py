"""Groups and the gradient tree against gloo's own all_reduce and torch's init_process_group.

The tree is what keeps the bits when ranks come and go; all_reduce shows what that costs. Ranks are
processes of one thread each on this machine, so more ranks than cores measure the machine too.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import torch
from measuring.ranks import in_turns, on_ranks, share_store
from measuring.rows import cost, report
from torch import distributed as dist

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.pages.own_pages import OwnPages
from remesh.parallel.plan.dealing import deal_in_runs
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.sums.lane import Lane, Sharing
from remesh.parallel.sums.meeting import SumMeeting
from remesh.parallel.sums.tree import TreeSum
from remesh.parallel.sums.workspace import Workspace

NUM_LEAVES = 12
NUM_SEGMENTS = 4  # the largest number of replicas of a job that has so many leaves
READ, SENT = "through memory", "by messages"
Times = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller gradients")
    quick = parser.parse_args().quick
    rounds = 7 if quick else 15
    sizes_mb = (1, 4) if quick else (1, 4, 16)
    rows = [
        cost(
            f"sum {NUM_LEAVES} leaves of {mb} MB, {ranks} ranks, {way}",
            "gloo all_reduce",
            times,
            "ms",
        )
        for ranks in (2, 3, 4, 8)
        for mb, both in zip(sizes_mb, on_ranks(ranks, time_sums, sizes_mb, rounds), strict=True)
        for way, times in both.items()
    ]
    rows += [
        cost(f"form, use and close, {ranks} ranks", "init_process_group", times, "ms")
        for ranks in (2, 4, 8)
        for times in on_ranks(ranks, time_forming, rounds)
    ]
    report("collectives", rows)


def time_sums(
    rendezvous: Rendezvous, sizes_mb: Sequence[int], rounds: int
) -> list[dict[str, Times]]:
    mesh = Mesh.form(rendezvous, GenerationFence())
    times = [time_sum(mesh, mb << 18, rounds) for mb in sizes_mb]
    mesh.close()
    return times


def time_sum(mesh: Mesh, size: int, rounds: int) -> dict[str, Times]:
    """Leaf gradients, each in a buffer of its own, to one sum on all ranks, in milliseconds."""
    group = mesh.data
    assert mesh.pages
    meeting = SumMeeting(group, mesh.replica, mesh.pages, OwnPages())
    ways = {READ: TreeOfLeaves(mesh, size, meeting), SENT: TreeOfLeaves(mesh, size)}
    gradients = ways[SENT].gradients

    prepared = cycle([*(way.prepare for way in ways.values()), ways[SENT].fill, ways[SENT].fill])

    def prepare() -> None:
        """Of one contestant: what another one has written would only push its data out of reach."""
        next(prepared)()

    def add_own() -> torch.Tensor:
        total = gradients[0]
        for gradient in gradients[1:]:
            total.add_(gradient)
        return total

    def add_alone() -> None:
        add_own()

    def by_all_reduce() -> None:
        all_reduce_(group, add_own())

    runs = [*(way.run for way in ways.values()), by_all_reduce, add_alone]
    *ours, theirs, own = in_turns(group, runs, rounds, prepare)
    if group.rank == 0:
        print(f"{size >> 18} MB, {group.size} ranks: {own:.3f} ms are additions of the own leaves")
    return {way: (time, theirs) for way, time in zip(ways, ours, strict=True)}


class TreeOfLeaves:
    """A sum by the tree, again and again."""

    def __init__(self, mesh: Mesh, size: int, meeting: SumMeeting | None = None) -> None:
        group = mesh.data
        dealing = deal_in_runs(
            LeafTree(num_leaves=NUM_LEAVES, num_segments=NUM_SEGMENTS), group.size
        )
        own = None if meeting is None else meeting.own
        self._leaves = dealing.portions[group.rank]
        self.gradients = [torch.randn(size) for _ in self._leaves]
        self._sum = TreeSum(
            Lane(
                pieces=Pieces(size=size, num_shards=1, num_replicas=group.size),
                sharing=Sharing(data=group, shard=mesh.shard, replica=mesh.replica),
                dealing=dealing,
                workspace=Workspace(torch.device("cpu"), own),
                dtype=torch.float32,
                meeting=meeting,
            )
        )
        self._buffers: list[torch.Tensor] = []

    def prepare(self) -> None:
        self._sum.clear()
        self._buffers = [self._sum.take() for _ in self.gradients]
        for buffer, gradient in zip(self._buffers, self.gradients, strict=True):
            buffer[: len(gradient)].copy_(gradient)

    def fill(self) -> None:
        """For those that add the gradients where they are."""
        for gradient in self.gradients:
            gradient.fill_(1)

    def run(self) -> None:
        for leaf, buffer in zip(self._leaves, self._buffers, strict=True):
            if self._sum.add(leaf, buffer):
                self._sum.start()
                self._sum.advance()
        self._sum.total()


def time_forming(rendezvous: Rendezvous, rounds: int) -> list[Times]:
    """From nothing to the first sum and back to nothing, in milliseconds."""
    barrier = Group.form(rendezvous, GenerationFence())
    generations = iter(range(1, 1000))
    address = share_store(barrier, rendezvous.op_timeout_s)

    def by_remesh() -> None:
        group = Group.form(replace(rendezvous, generation=next(generations)), GenerationFence())
        all_reduce_(group, torch.ones(1))
        group.close()

    def by_torch() -> None:
        store = dist.PrefixStore(f"{next(generations)}", address)
        dist.init_process_group("gloo", store=store, rank=barrier.rank, world_size=barrier.size)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    ours, theirs = in_turns(barrier, (by_remesh, by_torch), rounds)
    barrier.close()
    return [(ours, theirs)]


if __name__ == "__main__":
    main()
