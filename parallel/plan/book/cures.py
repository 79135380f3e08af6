"""What may be changed where a rule is broken, and to which values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remesh.parallel.plan.book.asked import Asked, Value
from remesh.parallel.plan.book.divisors import divisors, near_multiples


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A value that may be changed, and what to: all of `candidates` that break no other rule."""

    name: str
    candidates: Callable[[Asked], Sequence[Value]]


def head_unit(positions: str) -> int:
    """What the width of a head is a multiple of: rotary positions turn pairs of channels."""
    return 2 if positions == "rope" else 1


def heads_shared(tp: int, num_kv_heads: int) -> bool:
    """Whether ranks have whole kv heads each, or kv heads whole ranks."""
    return num_kv_heads % tp == 0 or tp % num_kv_heads == 0


def of(name: str, *values: Value) -> Cure:
    return Cure(name=name, candidates=lambda _: values)


def dividing(name: str, size: str) -> Cure:
    return Cure(name=name, candidates=lambda asked: divisors(getattr(asked, size)))


def _widths(asked: Asked) -> list[int]:
    assert asked.width
    assert asked.num_heads
    unit = head_unit(asked.positions or "")
    return near_multiples(asked.width, asked.num_heads * unit)


def _batches(asked: Asked) -> list[int]:
    assert asked.global_batch
    assert asked.microbatch
    found: set[int] = set()
    for replicas in (1, asked.dp or asked.most_replicas or 1):
        unit = asked.microbatch * math.lcm(replicas, asked.ep)
        found.update(near_multiples(asked.global_batch, unit))
    return sorted(found)


def _workers_of_batch(asked: Asked) -> range:
    """Numbers of workers that make enough replicas for one mesh and none without a microbatch."""
    most = (asked.num_microbatches or 0) * asked.least_replica_workers
    return range(asked.elastic_workers, most + 1)


def _even_layers(asked: Asked) -> list[Value]:
    fewest, longer = divmod(asked.num_layers or 0, asked.num_stages)
    even = [fewest + (stage < longer) for stage in range(asked.num_stages)]
    return [tuple(even), ()]


def _pp_of_stages(asked: Asked) -> range:
    chunks = asked.num_stages // asked.pp
    return range(1, (asked.num_layers or 1) // chunks + 1)


def _pp_of_workers(asked: Asked) -> range:
    each = asked.least_workers // asked.pp
    return range(1, (asked.max_workers or each) // each + 1)


def _virtual_stages(asked: Asked) -> range:
    return range(2, (asked.num_layers or 1) // asked.pp + 1)


def _short_pipelines(asked: Asked) -> list[Value]:
    """Those of the other degrees for which there are layers and workers."""
    workers, layers = asked.bound, asked.num_layers
    each = asked.tp * asked.cp * asked.whole_replicas
    most = min(layers or max(asked.pp_degrees), (workers or each * max(asked.pp_degrees)) // each)
    return [tuple(degree for degree in asked.elastic_pp if degree <= most)]


HEADS = (dividing("num_heads", "width"), Cure(name="width", candidates=_widths))
TP = dividing("tp", "num_heads")
DP = Cure(name="dp", candidates=lambda asked: divisors(asked.num_microbatches or asked.dp or 1))
BATCH = Cure(name="global_batch", candidates=_batches)
MICROBATCH = dividing("microbatch", "global_batch")
LEAST = Cure(name="max_workers", candidates=lambda asked: [asked.elastic_workers])
LAYERS = Cure(name="layers", candidates=_even_layers)
SHORT = Cure(name="elastic_pp", candidates=_short_pipelines)
VIRTUAL_STAGES = Cure(name="virtual_stages", candidates=_virtual_stages)
PP_OF_STAGES = Cure(name="pp", candidates=_pp_of_stages)
PP_OF_WORKERS = Cure(name="pp", candidates=_pp_of_workers)
WORKERS_OF_BATCH = Cure(name="max_workers", candidates=_workers_of_batch)
TOP_K = Cure(name="top_k", candidates=lambda asked: range(1, (asked.num_experts or 1) + 1))
DENSE_LAYERS = Cure(name="num_dense_layers", candidates=lambda a: range(a.num_layers or 1))
