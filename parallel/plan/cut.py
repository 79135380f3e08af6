"""Into which parts the state falls, and which of them a rank holds: the one place that knows.

The parameters are of two families. Dense ones are cut by stage and by tensor group, and ZeRO cuts
each of these parts into shards over dp·cp. Those of experts are cut by expert rank too, and their
shards lie over what is left of dp·cp. A rank holds one part of each family, and the state is whole
when each family is. Without expert parallelism both are cut alike: there is one family.

A stage here is all that a rank of a pipeline holds, one or several runs of layers: which those are
follows from the cut too. Where first and last layers share a parameter, both ends hold it.

Everything that asks whether state is all there, who holds what a rank lacks, or what a file, a
vault or a peer has, asks this value. What lost: a pair (tensor parts, shards) here and there, which
took one stage of a pipeline for all of it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import lru_cache
from itertools import product

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pipeline import Pipeline

Part = tuple[int, ...]  # of dense parameters (0, stage, tensor, shard); of experts (1, ...)

_DENSE, _EXPERTS = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Into how many parts the state falls on each way. Equal cuts have equal parts.

    `shards` ranks share a dense part, `expert_shards` one of experts. Shards are cut out of buckets
    of up to `bucket_elements`. `chunks`, `folded` and `layers` are those of the pipeline.
    """

    pp: int = 1
    tp: int = 1
    ep: int = 1
    shards: int = 1
    expert_shards: int = 1
    bucket_elements: int = 0
    chunks: int = 1
    folded: bool = False
    layers: tuple[int, ...] = ()

    @staticmethod
    def of(
        layout: Layout, shards: int, bucket_elements: int = 0, pipeline: Pipeline | None = None
    ) -> "Cut":
        """That of a mesh in which `shards` ranks of dp·cp share one copy of the dense part.

        Raises: LayoutError if the pipeline is not one of pp ranks.
        """
        if pipeline is None or layout.pp == 1:  # a rank alone has all layers, however it counts
            pipeline = Pipeline(ranks=layout.pp)
        if pipeline.ranks != layout.pp:
            raise LayoutError(
                f"a pipeline with ranks={pipeline.ranks} is none of {layout}; use {layout.pp}"
            )
        return Cut(
            pp=layout.pp,
            chunks=pipeline.chunks,
            folded=pipeline.folded,
            layers=pipeline.layers,
            tp=layout.tp,
            ep=layout.ep,
            shards=shards,
            expert_shards=max(1, shards // layout.ep),
            bucket_elements=bucket_elements,
        )

    @property
    def pipeline(self) -> Pipeline:
        """How layers lie on its ranks."""
        return Pipeline(ranks=self.pp, chunks=self.chunks, folded=self.folded, layers=self.layers)

    @property
    def num_parts(self) -> int:
        """Parts of all families."""
        dense = self.pp * self.tp * self.shards
        experts = self.pp * self.tp * self.ep * self.expert_shards
        return dense + (experts if self.ep > 1 else 0)

    @property
    def tensor_parts(self) -> int:
        """Parts of a layer, that a tensor group holds between its ranks."""
        return self.tp

    @property
    def expert_parts(self) -> int:
        """Parts of the experts of a layer, that an expert group holds between its ranks."""
        return self.ep

    @property
    def is_one(self) -> bool:
        """Whether each rank holds all of the state."""
        return self.num_parts == 1

    def parts(self) -> Iterator[Part]:
        """All of them, in order."""
        for dense in product(range(self.pp), range(self.tp), range(self.shards)):
            yield (_DENSE, *dense)
        if self.ep > 1:
            counts = (self.pp, self.tp, self.ep, self.expert_shards)
            for experts in product(*map(range, counts)):
                yield (_EXPERTS, *experts)

    def is_whole(self, found: Collection[Part]) -> bool:
        """Whether these different parts are all that there are."""
        return len(found) == self.num_parts

    def held_by(self, layout: Layout, rank: int) -> "Held":
        """What a rank of a mesh of this layout holds."""
        place, position = layout.coordinate(rank), layout.data_position(rank)
        return Held(
            cut=self,
            stage=place.pp,
            tensor=place.tp,
            shard=position % self.shards,
            expert=position % self.ep,
            expert_shard=position // self.ep % self.expert_shards,
        )

    def is_first(self, layout: Layout, rank: int) -> bool:
        """Whether some part that it holds no lower rank holds: then it puts snapshots of it."""
        return layout.data_position(rank) < self.distinct

    @property
    def distinct(self) -> int:
        """Ranks of dp·cp that hold something else each: all others hold what one of them does."""
        return max(self.shards, self.ep * self.expert_shards)

    def kept(self, other: "Cut") -> float:
        """Share of the state that ranks hold already as a mesh of this cut follows one of another.

        Each rank keeps its place. Parts that are cut at another length, not only in other shards,
        count as new ones.
        """
        if replace(self, shards=1, expert_shards=1) != replace(other, shards=1, expert_shards=1):
            return 0.0
        few, many = sorted((self.shards, other.shards))
        if few == many:
            return 1.0
        meeting = min(few, -(-few // (many - few)))
        return meeting * (meeting + 1) / (2 * many) - meeting * (meeting - 1) / (2 * few)

    def say(self, part: Part) -> str:
        """A part in words, such as "shard 2 of 4 of tensor part 0 of 2"; "all of it"."""
        if part[0] == _DENSE:
            _, stage, tensor, shard = part
            ways = [("shard", shard, self.shards)]
        else:
            _, stage, tensor, expert, shard = part
            ways = [("shard", shard, self.expert_shards), ("expert part", expert, self.ep)]
        ways += [("tensor part", tensor, self.tp), ("stage", stage, self.pp)]
        return " of ".join(f"{way} {n} of {count}" for way, n, count in ways if count > 1) or (
            "all of it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One rank's parts of a state that is `cut`: its place on each way, counted from 0.

    What is not cut at all is one part, as by the defaults.
    """

    cut: Cut = field(default_factory=Cut)
    stage: int = 0
    tensor: int = 0
    shard: int = 0
    expert: int = 0
    expert_shard: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """One of each family."""
        dense = (_DENSE, self.stage, self.tensor, self.shard)
        if self.cut.ep == 1:
            return (dense,)
        return (dense, (_EXPERTS, self.stage, self.tensor, self.expert, self.expert_shard))

    @property
    def place(self) -> tuple[int, int]:
        """Which of how many places it is whose holders have all parts between them."""
        cut = self.cut
        number = (self.stage * cut.tp + self.tensor) * cut.distinct + self.position
        return number, cut.pp * cut.tp * cut.distinct

    @property
    def position(self) -> int:
        """Which of `cut.distinct` positions on dp·cp: the first ones have each dense part once."""
        if self.cut.ep == 1:
            return self.shard
        return self.expert + self.cut.ep * self.expert_shard

    def __str__(self) -> str:
        return " and ".join(map(self.cut.say, self.parts))

    def to_numbers(self) -> tuple[int, ...]:
        """For messages between ranks; some number is above 0. Zeros may be added at the end."""
        cut, *places = astuple(self)
        *ways, layers = cut
        return (*map(int, ways), *places, *layers)

    @staticmethod
    def from_numbers(numbers: Sequence[int]) -> "Held":
        """What `to_numbers` told."""
        num_ways, num_places = len(fields(Cut)) - 1, len(fields(Held)) - 1
        end = num_ways + num_places
        layers = tuple(number for number in numbers[end:] if number)
        stage, tensor, shard, expert, expert_shard = numbers[num_ways:end]
        return Held(
            cut=_cut_of(tuple(numbers[:num_ways]), layers),
            stage=stage,
            tensor=tensor,
            shard=shard,
            expert=expert,
            expert_shard=expert_shard,
        )


@lru_cache(maxsize=16)
def _cut_of(ways: tuple[int, ...], layers: tuple[int, ...]) -> Cut:
    """One value for all ranks that are cut alike: thousands tell of theirs at once."""
    names = (way.name for way in fields(Cut))
    cut = Cut(**dict(zip(names, ways, strict=False)), layers=layers)  # type: ignore[arg-type]
    return replace(cut, folded=bool(cut.folded))


def held_by(layout: Layout, shards: int, rank: int) -> Held:
    """What a rank holds in a mesh in which `shards` ranks of dp·cp share one copy."""
    return Cut.of(layout, shards).held_by(layout, rank)
