"""The groups of one rank in one generation: one for each axis along which it talks.

A mesh is a value: formed, used, and closed as a whole. Groups of the same ranks are one group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from remesh.parallel.groups.collectives import gather_bytes
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Dropping, Group, close_all
from remesh.parallel.groups.pipes import Pipe, Ring
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.pages.shared_pages import SharedPages
from remesh.parallel.plan.book.asked import Asked
from remesh.parallel.plan.book.verdict import problems
from remesh.parallel.plan.errors import GroupError, LayoutError
from remesh.parallel.plan.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """`data` are the ranks with this rank's share of the model, by dp and then cp.

    They are cut into runs of `shard_size`: the ranks of `shard` hold one copy of the state
    together, those of `replica` the same part of it. Position = replica * shard_size + shard.

    `pipes` lead to the neighbours in this rank's own pipeline, by their positions in it; the last
    rank and the first one are neighbours too. `ring` is that of the cp ranks that have tokens of
    the same rows.

    `experts` hold all experts of a layer between them. `expert_data`, `expert_shard` and
    `expert_replica` are to the parts of experts what their namesakes are to all else: the ranks
    with the same experts, and those that hold one copy of them or the same part of it.

    `pages` are the memory of the ranks of `data`, where all of them are on one host, and
    `expert_pages` that of those of `expert_data`: None elsewhere, and on devices.
    """

    layout: Layout
    world: Group
    data: Group
    tensor: Group
    shard: Group
    replica: Group
    experts: Group
    expert_data: Group
    expert_shard: Group
    expert_replica: Group
    pipes: Mapping[int, Pipe] = field(default_factory=dict)
    ring: Ring = field(default_factory=Ring)
    pages: SharedPages | None = None
    expert_pages: SharedPages | None = None

    @staticmethod
    def form(
        rendezvous: Rendezvous,
        fence: GenerationFence,
        layout: Layout | None = None,
        shard_size: int = 1,
    ) -> "Mesh":
        """All groups of this rank. Without a layout, all ranks are replicas.

        Cost: 3-10 ms a group at 2-8 ranks on one host; two groups for each neighbour in a pipeline.
        Raises: LayoutError if sizes do not multiply out; Cancelled or GroupError as Group.form,
            with nothing left open.
        """
        layout = layout or Layout(dp=rendezvous.size)
        _check(layout, shard_size, rendezvous.size)
        builder = _Builder(rendezvous, fence)
        try:
            return builder.mesh(layout, shard_size)
        except BaseException:
            close_all(builder.groups.values()).wait()
            raise

    @staticmethod
    def alone(generation: int = 0) -> "Mesh":
        """The mesh of a rank that needs no other."""
        rendezvous = Rendezvous(
            host="",
            port=0,
            secret=b"",
            generation=generation,
            rank=0,
            size=1,
            node_ip="",
            form_timeout_s=0,
            op_timeout_s=0,
        )
        return Mesh.form(rendezvous, GenerationFence())

    @property
    def position(self) -> int:
        """That of this rank in its own pipeline."""
        return self.layout.coordinate(self.world.rank).pp

    @property
    def ends(self) -> Group:
        """Both ends of this rank's own pipeline, of which it is one; the last one sends."""
        last = self.layout.pp - 1
        return self.pipes[last].back if self.position == 0 else self.pipes[0].out

    @property
    def groups(self) -> tuple[Group, ...]:
        """Each group once."""
        axes = (self.world, self.data, self.tensor, self.shard, self.replica)
        experts = (self.experts, self.expert_data, self.expert_shard, self.expert_replica)
        pipes = (*self.pipes.values(), *([self.ring.pipe] if self.ring.pipe else []))
        groups = (*axes, *experts, *(group for pipe in pipes for group in (pipe.out, pipe.back)))
        return tuple({id(group): group for group in groups}.values())

    @property
    def bytes_sent(self) -> int:
        """Payload that this rank has sent through all of its groups."""
        return sum(group.bytes_sent for group in self.groups)

    def close(self) -> None:
        """Drops all groups and their sockets, and what it reads of others' memory. Repeatable."""
        self.leave().wait()

    def leave(self) -> Dropping:
        """The same, but that the groups are dropped beside: before others form they are waited for.

        Who tells that it has left need not wait: it sends, receives and reads nothing any more.
        """
        dropping = close_all(self.groups)
        for pages in filter(None, (self.pages, self.expert_pages)):
            pages.close()
        return dropping


class _Builder:
    """Forms each group when it is first asked for, in the same order on all ranks."""

    def __init__(self, rendezvous: Rendezvous, fence: GenerationFence) -> None:
        self._rendezvous = rendezvous
        self._fence = fence
        self.groups: dict[tuple[str, tuple[int, ...]], Group] = {}

    def mesh(self, layout: Layout, shard_size: int) -> Mesh:
        rank = self._rendezvous.rank
        replicas, position = layout.data(rank), layout.data_position(rank)
        first = position - position % shard_size
        mesh = Mesh(
            layout=layout,
            world=self._group(range(layout.world_size)),
            data=self._group(replicas),
            tensor=self._group(layout.neighbours(rank, "tp")),
            shard=self._group(replicas[first : first + shard_size]),
            replica=self._group(replicas[position % shard_size :: shard_size]),
            **self._expert_groups(layout, shard_size),
            pipes=dict(self._pipes(layout.neighbours(rank, "pp"))),
            ring=self._ring(layout.neighbours(rank, "cp")),
        )
        pages = self._pages(mesh.data)
        if pages is not None:
            mesh.data.connect(pages.pids, partial(gather_bytes, mesh.data))
        alike = pages and pages.of(slice(position % layout.ep, None, layout.ep))
        return replace(mesh, pages=pages, expert_pages=alike)

    def _expert_groups(self, layout: Layout, shard_size: int) -> dict[str, Any]:
        rank, ep = self._rendezvous.rank, layout.ep
        position = layout.data_position(rank)
        alike = layout.data(rank)[position % ep :: ep]
        shards = max(1, shard_size // ep) if ep > 1 else shard_size
        first = position // ep - position // ep % shards
        return {
            "experts": self._group(layout.experts(rank)),
            "expert_data": self._group(alike),
            "expert_shard": self._group(alike[first : first + shards]),
            "expert_replica": self._group(alike[position // ep % shards :: shards]),
        }

    def _pages(self, group: Group) -> SharedPages | None:
        """Where ranks may read each other's memory, and are not to have a device's manners."""
        if group.size == 1 or self._rendezvous.strict or self._rendezvous.device != "cpu":
            return None
        return SharedPages.form(partial(gather_bytes, group))

    def _pipes(self, pipeline: tuple[int, ...]) -> Iterator[tuple[int, Pipe]]:
        """Pairs that have no rank in common form at the same time: in two rounds, or three."""
        size, own = len(pipeline), pipeline.index(self._rendezvous.rank)
        for first in _in_rounds(size, size if size > _PAIR else size - 1):
            pair = first, (first + 1) % size
            if own in pair:
                there, here = (pipeline[position] for position in pair)
                forward = self._group((there, here), "forward ")
                back = self._group((there, here), "back ")
                if own == first:
                    yield pair[1], Pipe(out=forward, back=back)
                else:
                    yield pair[0], Pipe(out=back, back=forward)

    def _ring(self, ranks: tuple[int, ...]) -> Ring:
        """A group for each pair, in which one sends: all that goes round goes the same way."""
        size, own = len(ranks), ranks.index(self._rendezvous.rank)
        if size == 1:
            return Ring()
        links = {}
        for first in _in_rounds(size, size):
            pair = first, (first + 1) % size
            if own in pair:
                links[first] = self._group([ranks[place] for place in pair], "onward ")
        pipe = Pipe(out=links[own], back=links[(own - 1) % size])
        return Ring(rank=own, size=size, pipe=pipe)

    def _group(self, ranks: Sequence[int], kind: str = "") -> Group:
        key = kind, tuple(ranks)
        if key not in self.groups:
            try:
                world = next(iter(self.groups.values()), None)
                self.groups[key] = Group.form(self._part(key[1], kind), self._fence, world)
            except GroupError as error:
                error.waited_for = tuple(ranks[rank] for rank in error.waited_for)
                raise
        return self.groups[key]

    def _part(self, ranks: tuple[int, ...], kind: str) -> Rendezvous:
        whole = self._rendezvous
        if len(ranks) == whole.size and not kind:
            return whole
        # Runs with one distance between their ranks: three numbers tell them apart.
        step = ranks[1] - ranks[0] if len(ranks) > 1 else 0
        name = f"{whole.name}/{kind}{ranks[0]}+{len(ranks)}x{step}"
        return replace(whole, rank=ranks.index(whole.rank), size=len(ranks), name=name)


_PAIR = 2


def _in_rounds(size: int, num_pairs: int) -> list[int]:
    """The first of each of so many pairs of neighbours in a ring, those at odd places later."""
    return sorted(range(num_pairs), key=lambda first: (first == size - 1, first % 2))


def _check(layout: Layout, shard_size: int, num_ranks: int) -> None:
    if layout.world_size != num_ranks:
        raise LayoutError(f"{layout} does not fit {num_ranks} ranks; use {layout.world_size} ranks")
    degrees = Asked(dp=layout.num_data, ep=layout.ep, zero_group=shard_size)
    for problem in problems(degrees):
        raise LayoutError(problem)
