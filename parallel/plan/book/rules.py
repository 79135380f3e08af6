"""The rule book: what a model, a batch and the degrees of a mesh allow. There is no other one.

A rule is a row: what it is about, when it is broken, how that is said and what may be changed. The
job file asks all rules at once, the engine those about what it has in its hands: a rule keeps
silent while a value that it is about is None, which stands for not known. `verdict` asks.

The alternative, checks where the values are read, gave two books that disagreed, and cures that
the next check refused.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remesh.parallel.plan.book.divisors import divisors, near_multiples

Value = int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Sizes, degrees and a batch; what is None is not known, or left to what it follows from.

    `dp` is None for as many replicas as `max_workers` make. `zero_group` replicas share one copy of
    the state, all of them if it is 0.
    """

    num_layers: int | None = None
    width: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    ffn_width: int | None = None
    positions: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    microbatch: int | None = None
    dp: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence: bool = False
    zero_stage: int = 0
    zero_group: int = 0
    max_workers: int | None = None

    @property
    def num_microbatches(self) -> int | None:
        batch, microbatch = self.global_batch, self.microbatch
        if batch is None or microbatch is None or batch % microbatch:
            return None
        return batch // microbatch

    @property
    def replica_workers(self) -> int:
        """Workers of one replica. ep adds none: experts lie on the ranks of dp and cp."""
        return self.tp * self.pp * self.cp

    @property
    def least_workers(self) -> int:
        """Workers of the smallest mesh."""
        return self.replica_workers * (self.zero_group or 1)

    @property
    def num_workers(self) -> int | None:
        """Workers of the mesh, where its replicas are counted."""
        return None if self.dp is None else self.dp * self.replica_workers

    @property
    def most_replicas(self) -> int | None:
        """Replicas of the largest mesh, where their number follows from the workers."""
        if self.dp is not None or self.max_workers is None:
            return None
        replicas = self.max_workers // self.replica_workers
        return replicas - replicas % (self.zero_group or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A value that may be changed, and what to: all of `candidates` that break no other rule."""

    name: str
    candidates: Callable[[Asked], Sequence[Value]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """`broken` takes the values that the rule is `of`. `seen` says them: `{tp}` is name and value.

    `{tp:value}` is the value alone, and `{tp: with #}` is said only where the value is above 1.
    """

    of: tuple[str, ...]
    broken: Callable[..., bool]
    seen: str
    cures: tuple[Cure, ...]


def head_unit(positions: str) -> int:
    """What the width of a head is a multiple of: rotary positions turn pairs of channels."""
    return 2 if positions == "rope" else 1


def heads_shared(tp: int, num_kv_heads: int) -> bool:
    """Whether ranks have whole kv heads each, or kv heads whole ranks."""
    return num_kv_heads % tp == 0 or tp % num_kv_heads == 0


def _of(name: str, *values: Value) -> Cure:
    return Cure(name=name, candidates=lambda _: values)


def _dividing(name: str, size: str) -> Cure:
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
    return range(asked.least_workers, (asked.num_microbatches or 0) * asked.replica_workers + 1)


_HEADS = (_dividing("num_heads", "width"), Cure(name="width", candidates=_widths))
_TP = _dividing("tp", "num_heads")
_DP = Cure(name="dp", candidates=lambda asked: divisors(asked.num_microbatches or asked.dp or 1))
_BATCH = Cure(name="global_batch", candidates=_batches)
_MICROBATCH = _dividing("microbatch", "global_batch")
_BATCH_IN = "{global_batch} in microbatches of {microbatch:value} makes {num_microbatches:value}"
_LEAST = Cure(name="max_workers", candidates=lambda asked: [asked.least_workers])

OF_THE_MODEL = (
    Rule(
        of=("width", "num_heads"),
        broken=lambda width, heads: width % heads != 0,
        seen="{num_heads} does not cut {width} into equal heads",
        cures=_HEADS,
    ),
    Rule(
        of=("width", "num_heads", "positions"),
        broken=lambda width, heads, positions: (
            width % heads == 0 and width // heads % head_unit(positions) != 0
        ),
        seen="{num_heads} cuts {width} into heads of odd width, and {positions} turns pairs",
        cures=(*_HEADS, _of("positions", "learned")),
    ),
    Rule(
        of=("num_kv_heads", "num_heads"),
        broken=lambda kv_heads, heads: heads % kv_heads != 0,
        seen="{num_kv_heads} does not divide {num_heads}",
        cures=(_dividing("num_kv_heads", "num_heads"),),
    ),
)

OF_THE_AXES = (
    Rule(
        of=("tp", "num_heads"),
        broken=lambda tp, heads: heads % tp != 0,
        seen="{tp} does not divide {num_heads}",
        cures=(_TP,),
    ),
    Rule(
        of=("tp", "num_kv_heads"),
        broken=lambda tp, kv_heads: not heads_shared(tp, kv_heads),
        seen="{tp} neither divides {num_kv_heads} nor is a multiple of it",
        cures=(_TP,),
    ),
    Rule(
        of=("tp", "ffn_width"),
        broken=lambda tp, ffn_width: ffn_width % tp != 0,
        seen="{tp} does not divide {ffn_width}",
        cures=(_TP,),
    ),
    Rule(
        of=("tp", "cp", "sequence", "seq_len"),
        broken=lambda tp, cp, sequence, seq_len: sequence and seq_len % (tp * cp) != 0,
        seen="{tp}{cp: with #} does not divide {seq_len}, which {sequence} shares out",
        cures=(_TP, _of("sequence", False)),
    ),
    Rule(
        of=("pp", "num_layers"),
        broken=lambda pp, num_layers: pp > num_layers,
        seen="{pp} stages need as many layers, and there are {num_layers}",
        cures=(Cure(name="pp", candidates=lambda asked: range(1, (asked.num_layers or 1) + 1)),),
    ),
    Rule(
        of=("cp", "seq_len"),
        broken=lambda cp, seq_len: cp > 1 and seq_len % (2 * cp) != 0,
        seen="{cp} ranks take two runs of the tokens each, and do not divide {seq_len} so",
        cures=(_dividing("cp", "seq_len"),),
    ),
    Rule(
        of=("ep", "dp", "cp"),
        broken=lambda ep, dp, cp: dp * cp % ep != 0,
        seen="{ep} does not divide the {dp}{cp: times #} ranks that hold experts",
        cures=(Cure(name="ep", candidates=lambda asked: divisors((asked.dp or 1) * asked.cp)),),
    ),
    Rule(
        of=("ep", "num_microbatches"),
        broken=lambda ep, num_microbatches: num_microbatches % ep != 0,
        seen=_BATCH_IN + ", which {ep} does not divide",
        cures=(_dividing("ep", "num_microbatches"), _MICROBATCH),
    ),
    Rule(
        of=("dp", "zero_group"),
        broken=lambda dp, group: group > 0 and dp % group != 0,
        seen="{zero_group} does not divide {dp}",
        cures=(_dividing("zero_group", "dp"), _of("zero_group", 0)),
    ),
)

OF_THE_WORKERS = (
    Rule(
        of=("most_replicas", "max_workers"),
        broken=lambda most, _: most == 0,
        seen=(
            "{tp}{pp: with #}{cp: with #}{zero_group: in groups of # replicas} needs "
            "{least_workers:value} workers and {max_workers}"
        ),
        cures=(_TP, _of("zero_group", 0), _LEAST),
    ),
    Rule(
        of=("num_workers", "max_workers"),
        broken=lambda num_workers, most: num_workers > most,
        seen=(
            "{dp}{tp: with #}{pp: with #}{cp: with #} needs {num_workers:value} workers and "
            "{max_workers}"
        ),
        cures=(_DP, Cure(name="max_workers", candidates=lambda asked: [asked.num_workers or 1])),
    ),
)

OF_THE_BATCH = (
    Rule(
        of=("global_batch", "microbatch"),
        broken=lambda batch, microbatch: batch % microbatch != 0,
        seen="{global_batch} is not a multiple of {microbatch}",
        cures=(_BATCH, _MICROBATCH),
    ),
    Rule(
        of=("dp", "num_microbatches"),
        broken=lambda dp, num_microbatches: num_microbatches < dp,
        seen=_BATCH_IN + ", too few for {dp} replicas",
        cures=(_DP, _MICROBATCH),
    ),
    Rule(
        of=("dp", "num_microbatches"),
        broken=lambda dp, num_microbatches: num_microbatches > dp and num_microbatches % dp != 0,
        seen=_BATCH_IN + ", which {dp} does not divide",
        cures=(_DP, _MICROBATCH),
    ),
    Rule(
        of=("most_replicas", "num_microbatches"),
        broken=lambda most, num_microbatches: num_microbatches < most,
        seen=_BATCH_IN + ", too few for {most_replicas} replicas",
        cures=(Cure(name="max_workers", candidates=_workers_of_batch), _MICROBATCH, _BATCH),
    ),
)

# What can be computed.
RULES = OF_THE_MODEL + OF_THE_AXES + OF_THE_WORKERS + OF_THE_BATCH

# What would do nothing: an engine takes it, a user who writes it down means something else.
WITHOUT_EFFECT = (
    Rule(
        of=("sequence", "tp"),
        broken=lambda sequence, tp: sequence and tp == 1,
        seen="{sequence} shares the tokens among the ranks of a tp group, and {tp}",
        cures=(_TP, _of("sequence", False)),
    ),
    Rule(
        of=("zero_group", "zero_stage"),
        broken=lambda group, stage: group > 0 and stage == 0,
        seen="{zero_group} shares nothing at {zero_stage}",
        cures=(_of("zero_stage", 1, 2, 3), _of("zero_group", 0)),
    ),
)
