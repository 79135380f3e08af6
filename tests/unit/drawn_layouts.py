"""Random models and random ways to spread their state over ranks, for tests of resharding."""

import itertools
import math
from dataclasses import dataclass

from remesh.parallel.state.fragments import flat_boxes, whole

NUM_EXPERTS = 4
KV_HEADS = 2


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """`cut` is the dimension that tensor parallelism cuts, into at most `most` parts."""

    name: str
    shape: tuple
    cut: int | None = None
    most: int = 64
    is_expert: bool = False
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A layout: `stages` are the blocks of each pipeline rank; a bucket holds `bucket` blocks."""

    tp: int
    ep: int
    stages: tuple
    shard: int
    replicas: int
    bucket: int
    align: int

    @property
    def world_size(self):
        return self.tp * self.ep * len(self.stages) * self.shard * self.replicas


def draw_model(rng):
    """Blocks of tensors: odd shapes where nothing cuts them, a vocabulary that has to be padded."""
    width, vocab = 4 * rng.randint(1, 3), rng.randint(5, 23)
    blocks = [[Tensor(name="embedding", shape=(vocab, width), cut=0)]]
    blocks += [_layer(rng, f"layers.{i}", width) for i in range(rng.randint(1, 3))]
    head = Tensor(name="head", shape=(vocab, width), cut=0)
    step = Tensor(name="step", shape=(), dtype="int64")
    return [*blocks, [head, step, Tensor(name="bias", shape=(rng.choice([1, 7, 8, 10]),))]]


def _layer(rng, name, width):
    rows, narrow = 4 * rng.randint(1, 3), rng.randint(1, 3)
    tensors = [
        Tensor(name=f"{name}.norm", shape=(width,)),
        Tensor(name=f"{name}.up", shape=(rows, width), cut=0),
        Tensor(name=f"{name}.up.moment", shape=(rows, width), cut=0, dtype="bfloat16"),
        Tensor(name=f"{name}.down", shape=(width, rows), cut=1),
        Tensor(name=f"{name}.key", shape=(KV_HEADS * narrow, width), cut=0, most=KV_HEADS),
        Tensor(
            name=f"{name}.experts",
            shape=(NUM_EXPERTS, rows, narrow),
            cut=rng.choice([None, 1]),
            is_expert=True,
        ),
    ]
    return rng.sample(tensors, rng.randint(2, len(tensors)))


def draw_layout(rng, num_blocks, most_ranks=12):
    """Any degrees up to `most_ranks` ranks, any cut into virtual stages, any shards and buckets."""
    while True:
        pp, virtual = rng.randint(1, min(3, num_blocks)), rng.randint(1, 2)
        ends = sorted(rng.choices(range(num_blocks + 1), k=pp * virtual - 1))
        chunks = list(itertools.pairwise([0, *ends, num_blocks]))
        drawn = Drawn(
            tp=rng.choice([1, 2, 4]),
            ep=rng.choice([1, 2, 4]),
            stages=tuple(
                tuple(b for start, stop in chunks[rank::pp] for b in range(start, stop))
                for rank in range(pp)
            ),
            shard=rng.randint(1, 5),
            replicas=rng.randint(1, 3),
            bucket=rng.choice([1, 2, num_blocks]),
            align=rng.choice([1, 4, 64]),
        )
        if drawn.world_size <= most_ranks:
            return drawn


def holdings(blocks, layout):
    """The fragments of each rank: the ZeRO shard of its tensors, flattened bucket by bucket."""
    held = {}
    places = itertools.product(range(layout.replicas), layout.stages, range(layout.ep))
    for _, stage, ep in places:
        for shard, tp in itertools.product(range(layout.shard), range(layout.tp)):
            held[len(held)] = [
                fragment
                for first in range(0, len(stage), layout.bucket)
                for fragment in _shard(
                    [t for b in stage[first : first + layout.bucket] for t in blocks[b]],
                    layout,
                    (shard, ep, tp),
                )
            ]
    return held


def _shard(tensors, layout, place):
    shard, ep, tp = place
    shares = [share(tensor, layout, ep, tp) for tensor in tensors]
    lengths = [math.prod(local) for _, local in shares]
    size = -(-sum(lengths) // (layout.shard * layout.align)) * layout.align
    at = -shard * size
    for tensor, (offsets, local), length in zip(tensors, shares, lengths, strict=True):
        for box in flat_boxes(tensor.shape, offsets, local, max(0, -at), min(length, size - at)):
            full = whole(tensor.name, tensor.shape, tensor.dtype)
            yield full.part(box.offsets, box.sizes)
        at += length


def share(tensor, layout, ep, tp):
    """Offsets and padded local shape of a rank's part of the tensor."""
    offsets, local = [0] * len(tensor.shape), list(tensor.shape)
    if tensor.is_expert:
        local[0] = NUM_EXPERTS // layout.ep
        offsets[0] = ep * local[0]
    if tensor.cut is not None:
        parts = min(layout.tp, tensor.most)
        local[tensor.cut] = -(-tensor.shape[tensor.cut] // parts)
        offsets[tensor.cut] = tp * parts // layout.tp * local[tensor.cut]
    return tuple(offsets), tuple(local)


def draw_pair(rng):
    """A model and who holds what of it under two random layouts."""
    blocks = draw_model(rng)
    pair = [holdings(blocks, draw_layout(rng, len(blocks))) for _ in range(2)]
    return blocks, *pair
