"""Which parameters travel together, and when their gathered weights are needed: pure.

A block is what the model computes at once: the embedding, a layer, the head. A bucket is a flat
buffer of one or more whole blocks. Larger buckets save messages, smaller ones memory and time to
overlap, so that the job says how large.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from remesh.parallel.plan.model_config import TensorShape
from remesh.parallel.plan.pieces import CHUNK

_NONE: frozenset[int] = frozenset()
BUCKET_BYTES = 25 * 2**20  # of gradients, unless a job says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a parameter lies in its flat buffer, in elements."""

    start: int
    shape: TensorShape

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPlan:
    """Places of parameters; the first `num_decayed` elements get weight decay.

    Every parameter starts on a multiple of 64 elements: kernels treat an unaligned start
    differently, which shows in the last bit, and no chunk of the norm then holds two parameters, so
    that it is the same sum however blocks are put into buckets. Matrices come first: weight decay,
    which they alone get, is then a slice.
    """

    places: Mapping[str, Place]
    num_decayed: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Consecutive blocks, counted from the embedding, whose parameters share a flat buffer.

    `of_experts`: those of experts alone, which are cut and added up in another way.
    """

    blocks: range
    plan: FlatPlan
    of_experts: bool = False


def plan_flat(shapes: Mapping[str, TensorShape]) -> FlatPlan:
    """Matrices first, norm weights and biases after them, each kind in the order given."""
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    others = [name for name, shape in shapes.items() if len(shape) <= 1]
    places: dict[str, Place] = {}
    stop = num_decayed = 0
    for name in (*matrices, *others):
        places[name] = Place(start=_rounded(stop), shape=tuple(shapes[name]))
        stop = places[name].stop
        num_decayed = _rounded(stop) if name in matrices else num_decayed
    return FlatPlan(places=places, num_decayed=num_decayed, size=_rounded(stop))


def plan_buckets(
    blocks: Mapping[int, Mapping[str, TensorShape]], max_elements: int, alone: Collection[int] = ()
) -> tuple[Bucket, ...]:
    """Consecutive blocks are put together as long as a bucket stays within `max_elements`.

    `blocks` are those of one stage, by their numbers. A block is never cut: one that is larger is a
    bucket of its own. Those of `alone` stay by themselves, since other blocks need their parameters
    too.
    """
    spans: list[range] = []
    held = 0
    for number, shapes in blocks.items():
        size = sum(_rounded(math.prod(shape)) for shape in shapes.values())
        kept_apart = number in alone or number - 1 in alone
        if spans and held + size <= max_elements and not kept_apart:
            spans[-1] = range(spans[-1].start, number + 1)
            held += size
        else:
            spans.append(range(number, number + 1))
            held = size
    return tuple(
        Bucket(blocks=span, plan=plan_flat({k: s for n in span for k, s in blocks[n].items()}))
        for span in spans
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A phase of a pass: which buckets it needs, brings for the next phase, and lets go."""

    needs: tuple[int, ...]
    prefetches: tuple[int, ...]
    releases: tuple[int, ...]


def plan_visits(needs: Sequence[frozenset[int]]) -> tuple[Visit, ...]:
    """When to gather and free buckets, given what each phase of forward and backward needs.

    A bucket stays from one phase to the next if both need it, else it is freed and gathered again;
    the gather for a phase begins as the phase before it starts to compute.
    """
    known: dict[tuple[frozenset[int], frozenset[int]], Visit] = {}
    visits = []
    for pair in zip(needs, [*needs[1:], _NONE], strict=True):
        if pair not in known:  # a long schedule has few different ones
            now, after = pair
            known[pair] = Visit(
                needs=tuple(sorted(now)),
                prefetches=tuple(sorted(after - now)),
                releases=tuple(sorted(now - after)),
            )
        visits.append(known[pair])
    return tuple(visits)


def take_turns(visits: Sequence[Visit]) -> tuple[int, ...]:
    """A number for each bucket, the same for buckets that are never there at the same time.

    Few numbers: a bucket in the order of use takes the first that nobody around it has.
    """
    together: dict[int, set[int]] = {}
    for visit in dict.fromkeys(visits):  # what is released is gone: the order says no more
        there = {*visit.needs, *visit.prefetches}
        for bucket in there:
            together.setdefault(bucket, set()).update(there - {bucket})
    turns: dict[int, int] = {}
    for bucket, others in together.items():
        taken = {turns[other] for other in others if other in turns}
        turns[bucket] = next(n for n in range(len(together)) if n not in taken)
    return tuple(turns[bucket] for bucket in sorted(turns))


def _rounded(number: int) -> int:
    return -(-number // CHUNK) * CHUNK
