"""What a rank needs of memory at the fullest moment of a step, by what takes it: pure.

Each part is a formula over what the rest of this room plans: buckets, pieces, leaves, shares. It is
what processes were measured to take, and tests/dist holds it against them; the kernels' own scratch
memory and what an allocator wastes are not in it. A table of measured sizes was the alternative: it
has no row for the model that comes next.

Shapes: N tokens of a microbatch, C width, F ffn width, V vocabulary.
Source: Rajbhandari et al. 2019 (arXiv:1910.02054), section 3, the state and its shards; Korthikanti
et al. 2022 (arXiv:2205.05198), section 4, activations, here with what these kernels keep.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

from remesh.parallel.plan.leaves import push
from remesh.parallel.plan.model_config import ModelConfig, block_parameters
from remesh.parallel.plan.pieces import CHUNK, Pieces
from remesh.parallel.plan.shares import padded_rows, tensor_shares

PROCESS_BYTES = 320 << 20  # of a worker before it holds anything: Python, torch, Ray
STATE_BYTES = 12  # of a parameter: itself and two moments, all fp32
NUM_SLOTS = 3  # snapshots of a rank in a vault

_MASTER_BYTES = 4
_STREAMED_FROM, _FREED_FROM = 2, 3  # the ZeRO stages that keep no whole gradient, no whole weights
_GAPS = 0.5  # of memory that comes and goes in a step: measured of glibc's allocator
_MOST_LEAVES = 4096  # that are looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes. `working` are weights beside the master weights, `gradients` all that sums take.

    `passing` is there in a moment only: logits and their gradients, or what the backward of a layer
    holds, whichever is more. `gaps` are what the allocator holds between those. `saving` is the
    copy that a checkpoint is written from, `snapshots` are slots in shared memory, here and at the
    buddy.
    """

    parameters: int
    moments: int
    working: int
    gradients: int
    activations: int
    passing: int
    gaps: int = 0
    saving: int = 0
    snapshots: int = 0
    process: int = PROCESS_BYTES

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RankSizes:
    """All that the memory of a rank follows from. `shards` ranks of `dp` share one copy."""

    model: ModelConfig
    dp: int
    tp: int
    shards: int
    stage: int
    bucket_elements: int
    num_leaves: int
    microbatches_per_leaf: int
    microbatch: int
    compute_bytes: int = 4
    gradient_bytes: int = 4
    keep_gathered: bool = False
    sequence: bool = False
    same_bits: bool = True
    recompute: Literal["none", "attention", "full"] = "none"
    recompute_every: int = 1

    @cached_property
    def buckets(self) -> "tuple[BucketRun, ...]":
        """Runs of buckets of one size, as `plan_buckets` makes them."""
        return tuple(_bucket_runs(self))

    @property
    def num_tokens(self) -> int:
        return self.microbatch * self.model.seq_len

    @property
    def streams(self) -> bool:
        return self.stage >= _STREAMED_FROM and self.shards > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRun:
    """So many buckets, each of these pieces."""

    pieces: Pieces
    num: int = 1


def rank_memory(sizes: RankSizes) -> RankMemory:
    """Cost: microseconds, whatever the model's size."""
    owned = sum(run.num * run.pieces.shard_size for run in sizes.buckets)
    activations = _kept_bytes(sizes)
    passing = max(_loss_bytes(sizes), _backward_bytes(sizes))
    return RankMemory(
        parameters=_MASTER_BYTES * owned,
        moments=(STATE_BYTES - _MASTER_BYTES) * owned,
        working=sizes.compute_bytes * _working_elements(sizes),
        gradients=_gradient_bytes(sizes, owned),
        activations=activations,
        passing=passing,
        gaps=int(_GAPS * (activations + passing)),
    )


def num_parameters(model: ModelConfig) -> int:
    """Without counting them one by one: a model that is asked for may have a million layers."""
    embedding, layer, head = _block_sizes(model, 1, sequence=False, unit=1)
    return embedding + layer * model.num_layers + head


def _block_sizes(model: ModelConfig, tp: int, *, sequence: bool, unit: int) -> tuple[int, ...]:
    """Elements of embedding, layer and head, each parameter a multiple of `unit`."""
    one = replace(model, num_layers=1)
    shares = tensor_shares(one, tp, 0, sequence=sequence and tp > 1)
    return tuple(
        sum(-(-math.prod(shares[name].local_shape) // unit) * unit for name in names)
        for names in block_parameters(one).values()
    )


def _bucket_runs(sizes: RankSizes) -> Iterator[BucketRun]:
    def run(elements: int, num: int = 1) -> BucketRun:
        replicas = sizes.dp // sizes.shards
        pieces = Pieces(size=elements, num_shards=sizes.shards, num_replicas=replicas)
        return BucketRun(pieces=pieces, num=num)

    model, most = sizes.model, sizes.bucket_elements
    blocks = _block_sizes(model, sizes.tp, sequence=sizes.sequence, unit=CHUNK)
    embedding, layer, head = blocks
    first = 0 if model.tied else max(0, min(model.num_layers, (most - embedding) // layer))
    yield run(embedding + first * layer)
    together = max(1, most // layer)
    whole, rest = divmod(model.num_layers - first, together)
    if whole and not rest:  # the head may join the last one
        whole, rest = whole - 1, together
    if whole:
        yield run(together * layer, whole)
    if rest and rest * layer + head <= most:
        yield run(rest * layer + head)
    elif rest:
        yield run(rest * layer)
        yield run(head)
    else:
        yield run(head)


def _working_elements(sizes: RankSizes) -> int:
    """Of weights that are not the master weights themselves."""
    full = [(run.pieces.shard_size * sizes.shards, run.num) for run in sizes.buckets]
    if sizes.shards == 1 and sizes.compute_bytes == _MASTER_BYTES:
        return 0
    if sizes.stage < _FREED_FROM or sizes.keep_gathered:
        return sum(size * num for size, num in full)
    # One block is there while the next one comes: buckets take turns in two rooms.
    rooms = sorted((size for size, num in full for _ in range(min(num, 2))), reverse=True)[:2]
    return sum(rooms) + (full[0][0] if sizes.model.tied else 0)


def _gradient_bytes(sizes: RankSizes, owned: int) -> int:
    runs = [(run.pieces, run.num) for run in sizes.buckets]
    if sizes.model.tied:  # the head adds to the embedding's bucket, apart
        runs.append((runs[0][0], 1))
    padded = sum(pieces.padded_size * num for pieces, num in runs)
    largest = max((pieces for pieces, _ in runs), key=lambda pieces: pieces.padded_size)
    sums = _streamed_elements if sizes.streams else _summed_elements
    found = sizes.gradient_bytes * sums(sizes, padded, largest)
    if sizes.compute_bytes != sizes.gradient_bytes:
        found += sizes.compute_bytes * largest.padded_size
    if sizes.gradient_bytes != _MASTER_BYTES:
        found += _MASTER_BYTES * largest.shard_size
    return found + owned // 2  # four numbers a chunk, for the norm


def _summed_elements(sizes: RankSizes, padded: int, largest: Pieces) -> int:
    """A rank adds its own leaves, then all exchange what they have."""
    if not sizes.same_bits:
        return padded
    kept = _nodes_kept(sizes)
    if sizes.microbatches_per_leaf > 1:
        found = padded * (max([0, *kept[:-1]]) + 1)
    else:
        found = padded * max(kept) + (largest.padded_size if len(kept) > 1 else 0)
    return found + 2 * _exchanged_elements(sizes, kept[-1], largest)


def _exchanged_elements(sizes: RankSizes, own: int, largest: Pieces) -> int:
    """Of one bucket under way: the pieces that arrive, and those that have to be packed first.

    A rank has `own` nodes of the tree.
    """
    if sizes.dp == 1 or (sizes.shards == 1 and sizes.dp == 2 and own == 1):  # noqa: PLR2004
        return 0
    packed = 0 if own == 1 and largest.in_order else own * largest.padded_size
    return sizes.dp * own * largest.piece_size + packed


def _streamed_elements(sizes: RankSizes, padded: int, largest: Pieces) -> int:
    """Every leaf is exchanged as soon as it is there; two buckets are under way at a time."""
    runs = sizes.buckets
    if not sizes.same_bits:
        owned = sum(run.num * run.pieces.shard_size for run in runs)
        under_way = 2 * (largest.padded_size + largest.shard_size)
        return owned + (padded if sizes.microbatches_per_leaf > 1 else 0) + under_way
    rounds = range(1, min(-(-sizes.num_leaves // sizes.dp), _MOST_LEAVES) + 1)
    depth = max(min(n * sizes.dp, sizes.num_leaves).bit_count() for n in rounds[:-1] or [1])
    pieces = sum(run.num * run.pieces.piece_size for run in runs) * depth
    whole = padded if sizes.microbatches_per_leaf > 1 else 0
    return pieces + whole + 4 * largest.padded_size


def _nodes_kept(sizes: RankSizes) -> list[int]:
    """Of the first rank, which has the most leaves: nodes of the tree after each of its leaves."""
    num_leaves = sizes.num_leaves
    stack: list[tuple[range, None]] = []
    found = []
    for leaf in range(min(-(-num_leaves // sizes.dp), _MOST_LEAVES)):
        push(stack, (range(leaf, leaf + 1), None), lambda *_: None, num_leaves)
        found.append(len(stack))
    return found


def _kept_bytes(sizes: RankSizes) -> int:
    """Activations that wait for their backward."""
    every, num_layers = sizes.recompute_every, sizes.model.num_layers
    again = 0 if sizes.recompute == "none" else -(-num_layers // every)
    layer, input_only = _layer_bytes(sizes), sizes.num_tokens * _stream_bytes(sizes)
    if sizes.recompute == "full":
        return (num_layers - again) * layer + again * input_only + (layer if again else 0)
    return (num_layers - again) * layer + again * _layer_bytes(sizes, attention_again=True)


def _stream_bytes(sizes: RankSizes) -> int:
    """Of a token in the residual stream on this rank."""
    shared = sizes.tp if sizes.sequence else 1
    return sizes.model.width * sizes.compute_bytes // shared


def _layer_bytes(sizes: RankSizes, *, attention_again: bool = False) -> int:
    """What one layer keeps: inputs of its linear maps, of its norms and of attention."""
    model, tp, size = sizes.model, sizes.tp, sizes.compute_bytes
    query = model.width // tp
    kv = max(1, model.num_kv_heads // tp) * model.head_width
    ffn = model.ffn_width // tp * (4 if model.activation == "swiglu" else 2)
    attended = 2 * query + 2 * kv
    kept = (attended + ffn) * size + 4 * model.num_heads // tp
    if model.qk_norm and not attention_again:
        kept += 10 * (query + kv)
    return sizes.num_tokens * (kept + 2 * _norm_bytes(sizes) + _input_bytes(sizes))


def _norm_bytes(sizes: RankSizes) -> int:
    """Of a token: what a norm keeps, and its result, which linear maps keep."""
    shared = sizes.tp if sizes.sequence else 1
    inner = 8 if sizes.model.norm == "rms" else sizes.compute_bytes  # rms works in fp32
    return sizes.model.width * (inner + sizes.compute_bytes) // shared


def _input_bytes(sizes: RankSizes) -> int:
    """Of a token: a layer's input where the norm keeps a copy in fp32 instead."""
    wide = sizes.model.norm == "rms" and sizes.compute_bytes != _MASTER_BYTES
    return _stream_bytes(sizes) if wide else 0


def _loss_bytes(sizes: RankSizes) -> int:
    """Logits, their log-softmax and its gradient, all fp32; with tp one of them, used up."""
    rows = padded_rows(sizes.model.vocab_size, sizes.tp)
    copies = 3 if sizes.tp == 1 else 1
    narrow = 0 if sizes.compute_bytes == _MASTER_BYTES else sizes.compute_bytes
    return sizes.num_tokens * (rows * (4 * copies + narrow) + _norm_bytes(sizes))


def _backward_bytes(sizes: RankSizes) -> int:
    """Gradients between the maps of a layer: of the feed-forward net, and of the stream."""
    gates = 3 if sizes.model.activation == "swiglu" else 2
    ffn = gates * sizes.model.ffn_width // sizes.tp
    return sizes.num_tokens * sizes.compute_bytes * (ffn + 3 * sizes.model.width)
