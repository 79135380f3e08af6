"""All that the memory of a rank follows from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.model_config import ModelConfig, block_parameters
from remesh.parallel.plan.pieces import CHUNK, Pieces, streams
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import PLAIN, PUBLISHED, most_in_flight
from remesh.parallel.plan.shares import is_of_experts, tensor_shares

MASTER_BYTES = 4
HALVED = frozenset({"zb-h1", "dualpipe-v"})  # the schedules that split a backward


@dataclass(frozen=True, kw_only=True)
class RankSizes:
    """All that the memory of a rank follows from. `shards` ranks of `dp` times `cp` share one copy.

    It is the one at `position` in a pipeline of its replica, which has up to `num_microbatches`.
    On `one_host` ranks read each other's gradients where they lie, and keep none that arrive.
    """

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
    ep: int = 1
    pipeline: Pipeline = field(default_factory=Pipeline)
    schedule: str = PLAIN
    num_microbatches: int = 1
    position: int = 0
    cp: int = 1
    num_segments: int = 1
    one_host: bool = False

    @property
    def tree(self) -> LeafTree:
        """How leaves are added up."""
        return LeafTree(num_leaves=self.num_leaves, num_segments=self.num_segments)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Of each of its stages, from the front."""
        sizes = self.pipeline.sizes(self.model.num_layers)
        return tuple(sizes[stage] for stage in self.pipeline.stages_of(self.position))

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """The layers of each of its stages, from the front."""
        sizes = self.pipeline.sizes(self.model.num_layers)
        starts = (sum(sizes[:stage]) for stage in self.pipeline.stages_of(self.position))
        return tuple(range(n, n + count) for n, count in zip(starts, self.layers, strict=True))

    @property
    def most_layers(self) -> int:
        """Of its longest stage."""
        return max(self.layers)

    @property
    def has_embedding(self) -> bool:
        return self.position == self.pipeline.rank_of(0)

    @property
    def has_head(self) -> bool:
        return self.position == self.pipeline.rank_of(self.pipeline.num_stages - 1)

    @property
    def has_copy(self) -> bool:
        """Whether it has the embedding for its head alone, as the last stage of a tied model."""
        return self.model.tied and self.has_head and not self.has_embedding

    @property
    def halved(self) -> bool:
        """Whether backward comes in halves, between which both ends of each map are kept."""
        return self.pipeline.ranks > 1 and self.schedule in HALVED

    @property
    def paired(self) -> bool:
        """Whether a forward is computed beside a backward, each with the weights of a block."""
        return self.pipeline.ranks > 1 and self.ep > 1 and PUBLISHED[self.schedule].paired

    @property
    def in_flight(self) -> int:
        """Passes through one of its stages that wait for their backward, at the most."""
        if self.pipeline.ranks == 1:
            return 1
        return most_in_flight(self.schedule, self.pipeline, self.position, self.num_microbatches)

    @cached_property
    def buckets(self) -> "tuple[BucketRun, ...]":
        """Runs of buckets of one size, as `plan_buckets` makes them."""
        return tuple(_bucket_runs(self))

    @property
    def num_tokens(self) -> int:
        """Of a microbatch on this rank, before a tensor group shares some of them out."""
        return self.microbatch * self.model.seq_len // self.cp

    @property
    def streams(self) -> bool:
        return streams(self.stage, self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRun:
    """So many buckets, each of these pieces; `of_experts` those apart of ranks that share them."""

    pieces: Pieces
    num: int = 1
    of_experts: bool = False


def num_parameters(model: ModelConfig) -> int:
    """Without counting them one by one: a model that is asked for may have a million layers."""
    blocks = _block_sizes(model, 1, sequence=False, unit=1)
    dense = model.num_layers - model.num_expert_layers
    of_layers = blocks.dense * dense + blocks.experts * model.num_expert_layers
    return blocks.embedding + of_layers + blocks.head


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockElements:
    """Elements of each kind of block; where ranks share experts, `stacks` are those apart."""

    embedding: int
    dense: int
    experts: int
    head: int
    stacks: int = 0


def _block_sizes(
    model: ModelConfig, tp: int, *, sequence: bool, unit: int, ep: int = 1
) -> _BlockElements:
    """Each parameter a multiple of `unit`."""
    own = range(model.num_experts // ep) if ep > 1 else None

    def sizes(one: ModelConfig, *, apart: bool) -> list[int]:
        shares = tensor_shares(one, tp, 0, sequence=sequence and tp > 1, experts=own)
        return [
            sum(
                -(-math.prod(shares[name].local_shape) // unit) * unit
                for name in names
                if is_of_experts(name) == apart or own is None
            )
            for names in block_parameters(one).values()
        ]

    first = replace(model, num_layers=1, num_dense_layers=0)
    embedding, layer, head = sizes(first, apart=False)
    dense = sizes(replace(first, num_experts=0), apart=False)[1] if model.num_experts else layer
    stacks = 0 if own is None else sizes(first, apart=True)[1]
    return _BlockElements(embedding=embedding, dense=dense, experts=layer, head=head, stacks=stacks)


def _bucket_runs(sizes: RankSizes) -> Iterator[BucketRun]:
    model, most = sizes.model, sizes.bucket_elements
    blocks = _block_sizes(model, sizes.tp, sequence=sizes.sequence, unit=CHUNK, ep=sizes.ep)
    alike = sizes.dp * sizes.cp
    replicas = alike // sizes.shards
    expert_shards = max(1, sizes.shards // sizes.ep)
    rows: list[list[tuple[int, int]]] = [[(blocks.embedding, 1)]] if sizes.has_copy else []
    for number, span in enumerate(sizes.spans):
        row = []
        if sizes.has_embedding and number == 0:
            row.append((blocks.embedding, 1))
            if model.tied:  # by itself
                rows.append(row)
                row = []
        first = model.num_dense_layers if model.num_experts else model.num_layers
        dense = len(range(span.start, min(span.stop, first)))
        row += [(blocks.dense, dense), (blocks.experts, len(span) - dense)]
        if sizes.has_head and number == len(sizes.spans) - 1:
            row.append((blocks.head, 1))
        rows.append(row)
    for row in rows:
        for elements, num in _packed(row, most):
            pieces = Pieces(size=elements, num_shards=sizes.shards, num_replicas=replicas)
            yield BucketRun(pieces=pieces, num=num)
    for span in sizes.spans if blocks.stacks else ():
        apart = len(range(max(span.start, model.num_dense_layers), span.stop))
        for elements, num in _packed([(blocks.stacks, apart)], most):
            copies = alike // sizes.ep // expert_shards
            pieces = Pieces(size=elements, num_shards=expert_shards, num_replicas=copies)
            yield BucketRun(pieces=pieces, num=num, of_experts=True)


def _packed(row: Sequence[tuple[int, int]], most: int) -> Iterator[tuple[int, int]]:
    """Sizes of buckets and how many follow one another, of blocks given so, as many as go in."""
    held = 0
    for size, count in row:
        left = count
        if held:
            joining = max(0, min(count, (most - held) // size))
            held, left = held + joining * size, count - joining
        if not left:
            continue
        if held:
            yield held, 1
        together = max(1, most // size)
        whole = (left - 1) // together  # what follows may join the last one
        if whole:
            yield together * size, whole
        held = (left - whole * together) * size
    if held:
        yield held, 1
