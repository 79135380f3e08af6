"""Where each parameter lies in the parts of the state, and which parts a box of it falls into.

All ranks of a stage lay out what they hold alike: tensor and expert ranks have other rows of a
tensor at the same place of a bucket, and shards are runs of it. So a few layouts serve for all
ranks, and where a box lies follows from its offsets: nobody is looked through.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from remesh.parallel.holding.own_buckets import experts_of, own_buckets
from remesh.parallel.holding.owned import Owned, owned_boxes
from remesh.parallel.plan.buckets import Place
from remesh.parallel.plan.cut import Cut, Held
from remesh.parallel.plan.model_config import parameter_shapes
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.plan.shares import Share, of_experts, tensor_shares
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment


class PartOf(NamedTuple):
    """One part of one family: of the dense parameters, or of those of experts."""

    cut: Cut
    experts: bool
    stage: int
    tensor: int
    expert: int
    shard: int


def parts_of(held: Held) -> tuple[PartOf, ...]:
    """What a rank holds, one part of each family."""
    dense = PartOf(held.cut, False, held.stage, held.tensor, 0, held.shard)
    if held.cut.expert_parts == 1:
        return (dense,)
    return dense, dense._replace(experts=True, expert=held.expert, shard=held.expert_shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """A parameter in the buckets of a stage."""

    bucket: int
    place: Place
    pieces: Pieces
    experts: bool


class PartLayouts:
    """Of every cut, worked out when it is asked for."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._shapes = parameter_shapes(spec.model)
        self._dtype = str(spec.precision.master).removeprefix("torch.")
        self._shares: dict[tuple[int, int], dict[str, Share]] = {}
        self._spots: dict[tuple[Cut, int], dict[str, _Spot]] = {}
        self._boxes: dict[tuple[PartOf, str], list[Owned]] = {}

    def names(self, part: PartOf) -> list[str]:
        """The parameters that it holds something of, in the order of its memory."""
        spots = self._stage(part.cut, part.stage)
        return [
            name
            for name, spot in spots.items()
            if spot.experts == part.experts and self._owned(part, name)
        ]

    def boxes(self, part: PartOf, name: str) -> list[Owned]:
        """What the part holds of a parameter."""
        if (part, name) not in self._boxes:
            self._boxes[part, name] = list(self._found_boxes(part, name))
        return self._boxes[part, name]

    def turn(self, part: PartOf, owned: Owned, count: int) -> int:
        """Which of `count` comes first at this place of the part: all by turns as one goes on."""
        spot = self._stage(part.cut, part.stage)[owned.fragment.name]
        return spot.bucket + owned.start * count // max(1, len(spot.pieces.shard(part.shard)))

    def alike(self, part: PartOf, name: str) -> tuple[PartOf, ...]:
        """The parts of all tensor ranks that hold the same of this parameter."""
        return tuple(part._replace(tensor=tensor) for tensor in self._share(part, name).holders)

    def meeting(self, cut: Cut, box: Fragment) -> Iterator[PartOf]:
        """The parts of a cut that may hold something of a box: of those that hold the same of its
        parameter, the first.
        """
        for stage in range(cut.pipeline.ranks):
            spot = self._stage(cut, stage).get(box.name)
            if spot is None:
                continue
            for tensor in range(cut.tensor_parts):
                for expert in range(cut.expert_parts if spot.experts else 1):
                    part = PartOf(cut, spot.experts, stage, tensor, expert, 0)
                    share = self._share(part, box.name)
                    if share.holders[0] == tensor:
                        for shard in _shards(spot, share, box):
                            yield part._replace(shard=shard)

    def _found_boxes(self, part: PartOf, name: str) -> Iterator[Owned]:
        spot, share = self._stage(part.cut, part.stage)[name], self._share(part, name)
        tensor = Fragment(
            name=name,
            global_shape=self._shapes[name],
            offsets=share.offsets,
            sizes=spot.place.shape,
            dtype=self._dtype,
        )
        return owned_boxes(spot.place, tensor, spot.pieces.shard(part.shard))

    def _owned(self, part: PartOf, name: str) -> bool:
        spot = self._stage(part.cut, part.stage)[name]
        owned = spot.pieces.shard(part.shard)
        return spot.place.start < owned.stop and owned.start < spot.place.stop

    def _share(self, part: PartOf, name: str) -> Share:
        cut = part.cut
        key = (cut.tensor_parts, part.tensor)
        if key not in self._shares:
            self._shares[key] = tensor_shares(
                self._spec.model, *key, sequence=self._spec.sequence and cut.tensor_parts > 1
            )
        share = self._shares[key][name]
        experts = experts_of(self._spec.model, cut, part.expert) if part.experts else None
        return share if experts is None else of_experts(share, experts)

    def _stage(self, cut: Cut, stage: int) -> dict[str, _Spot]:
        if (cut, stage) not in self._spots:
            self._spots[cut, stage] = self._found(cut, stage)
        return self._spots[cut, stage]

    def _found(self, cut: Cut, stage: int) -> dict[str, _Spot]:
        model = self._spec.model
        shares = tensor_shares(
            model,
            cut.tensor_parts,
            0,
            sequence=self._spec.sequence and cut.tensor_parts > 1,
            experts=experts_of(model, cut, 0),
        )
        spots = {}
        for number, bucket in enumerate(own_buckets(model, Held(cut=cut, stage=stage), shares)):
            num_shards = cut.expert_shards if bucket.of_experts else cut.shards
            pieces = Pieces(size=bucket.plan.size, num_shards=num_shards, num_replicas=1)
            for name, place in bucket.plan.places.items():
                spots[name] = _Spot(
                    bucket=number, place=place, pieces=pieces, experts=bucket.of_experts
                )
        return spots


def _shards(spot: _Spot, share: Share, box: Fragment) -> range:
    """Those in which the part of a box lies that a share has; none if it has nothing of it."""
    first = last = 0
    for dim, extent in enumerate(share.local_shape):
        start = max(box.offsets[dim], share.offsets[dim])
        stop = min(box.offsets[dim] + box.sizes[dim], share.offsets[dim] + share.sizes[dim])
        if start >= stop:
            return range(0)
        first = first * extent + start - share.offsets[dim]
        last = last * extent + stop - 1 - share.offsets[dim]
    size = spot.pieces.shard_size
    return range((spot.place.start + first) // size, (spot.place.start + last) // size + 1)
