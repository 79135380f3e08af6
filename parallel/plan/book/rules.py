"""The rule book: what a model, a batch and the degrees of a mesh allow. There is no other one.

A rule is a row: what it is about, when it is broken, how that is said and what may be changed. The
job file asks all rules at once, the engine those about what it has in its hands: a rule keeps
silent while a value that it is about is None, which stands for not known. `verdict` asks.

The alternative, checks where the values are read, gave two books that disagreed, and cures that
the next check refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from remesh.parallel.plan.book.cures import (
    BATCH,
    DENSE_LAYERS,
    DP,
    HEADS,
    LAYERS,
    LEAST,
    MICROBATCH,
    PP_OF_STAGES,
    PP_OF_WORKERS,
    SHORT,
    TOP_K,
    TP,
    VIRTUAL_STAGES,
    WORKERS_OF_BATCH,
    Cure,
    dividing,
    head_unit,
    heads_shared,
    of,
)
from remesh.parallel.plan.book.divisors import divisors

BATCH_IN = "{global_batch} in microbatches of {microbatch:value} makes {num_microbatches:value}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """`broken` takes the values that the rule is `of`. `seen` says them: `{tp}` is name and value.

    `{tp:value}` is the value alone, and `{tp: with #}` is said only where the value is above 1.
    """

    of: tuple[str, ...]
    broken: Callable[..., bool]
    seen: str
    cures: tuple[Cure, ...]


OF_THE_MODEL = (
    Rule(
        of=("width", "num_heads"),
        broken=lambda width, heads: width % heads != 0,
        seen="{num_heads} does not cut {width} into equal heads",
        cures=HEADS,
    ),
    Rule(
        of=("width", "num_heads", "positions"),
        broken=lambda width, heads, positions: (
            width % heads == 0 and width // heads % head_unit(positions) != 0
        ),
        seen="{num_heads} cuts {width} into heads of odd width, and {positions} turns pairs",
        cures=(*HEADS, of("positions", "learned")),
    ),
    Rule(
        of=("num_kv_heads", "num_heads"),
        broken=lambda kv_heads, heads: heads % kv_heads != 0,
        seen="{num_kv_heads} does not divide {num_heads}",
        cures=(dividing("num_kv_heads", "num_heads"),),
    ),
    Rule(
        of=("top_k", "num_experts"),
        broken=lambda top_k, experts: 0 < experts < top_k,
        seen="{top_k}: a token cannot go to so many of {num_experts}",
        cures=(TOP_K,),
    ),
    Rule(
        of=("num_dense_layers", "num_layers", "num_experts"),
        broken=lambda dense, layers, experts: experts > 0 and dense >= layers,
        seen="{num_dense_layers} leaves none of {num_layers} to the experts",
        cures=(DENSE_LAYERS,),
    ),
)

OF_THE_AXES = (
    Rule(
        of=("tp", "num_heads"),
        broken=lambda tp, heads: heads % tp != 0,
        seen="{tp} does not divide {num_heads}",
        cures=(TP,),
    ),
    Rule(
        of=("tp", "num_kv_heads"),
        broken=lambda tp, kv_heads: not heads_shared(tp, kv_heads),
        seen="{tp} neither divides {num_kv_heads} nor is a multiple of it",
        cures=(TP,),
    ),
    Rule(
        of=("tp", "ffn_width"),
        broken=lambda tp, ffn_width: ffn_width % tp != 0,
        seen="{tp} does not divide {ffn_width}",
        cures=(TP,),
    ),
    Rule(
        of=("tp", "inner_width", "num_experts"),
        broken=lambda tp, inner_width, experts: experts > 0 and inner_width % tp != 0,
        seen="{tp} does not divide {inner_width}, to which the experts widen",
        cures=(TP,),
    ),
    Rule(
        of=("ep", "num_experts"),
        broken=lambda ep, experts: ep > 1 and experts % ep != 0,
        seen="{ep} does not divide {num_experts}",
        cures=(dividing("ep", "num_experts"),),
    ),
    Rule(
        of=("ep", "num_experts"),
        broken=lambda ep, experts: ep > 1 and experts == 0,
        seen="{ep} ranks share experts, and {num_experts}",
        cures=(of("ep", 1),),
    ),
    Rule(
        of=("tp", "cp", "sequence", "seq_len"),
        broken=lambda tp, cp, sequence, seq_len: sequence and seq_len % (tp * cp) != 0,
        seen="{tp}{cp: with #} does not divide {seq_len}, which {sequence} shares out",
        cures=(TP, of("sequence", False)),
    ),
    Rule(
        of=("pp", "num_layers"),
        broken=lambda pp, num_layers: pp > num_layers,
        seen="{pp} stages need as many layers, and there are {num_layers}",
        cures=(Cure(name="pp", candidates=lambda asked: range(1, (asked.num_layers or 1) + 1)),),
    ),
    Rule(
        of=("pp", "num_stages", "num_layers", "schedule"),
        broken=lambda pp, stages, num_layers, _: pp <= num_layers < stages,
        seen=(
            "{pp} with {schedule} makes {num_stages:value} virtual stages, which need as many "
            "layers, and there are {num_layers}"
        ),
        cures=(
            VIRTUAL_STAGES,
            PP_OF_STAGES,
            of("schedule", "1f1b"),
        ),
    ),
    Rule(
        of=("layers", "num_stages"),
        broken=lambda layers, stages: len(layers) not in (0, stages),
        seen="{layers} is not of {num_stages:value} stages, which {pp}{virtual_stages: with #} has",
        cures=(LAYERS,),
    ),
    Rule(
        of=("layers", "num_split", "num_layers"),
        broken=lambda layers, num_split, num_layers: layers != () and num_split != num_layers,
        seen="{layers} adds up to {num_split:value}, and there are {num_layers}",
        cures=(LAYERS,),
    ),
    Rule(
        of=("elastic_pp", "num_layers"),
        broken=lambda degrees, num_layers: any(pp > num_layers for pp in degrees),
        seen="{elastic_pp}: so many stages need as many layers, and there are {num_layers}",
        cures=(SHORT,),
    ),
    Rule(
        of=("cp", "seq_len"),
        broken=lambda cp, seq_len: cp > 1 and seq_len % (2 * cp) != 0,
        seen="{cp} ranks take two runs of the tokens each, and do not divide {seq_len} so",
        cures=(dividing("cp", "seq_len"),),
    ),
    Rule(
        of=("ep", "dp", "cp"),
        broken=lambda ep, dp, cp: dp * cp % ep != 0,
        seen="{ep} does not divide the {dp}{cp: times #} ranks that hold experts",
        cures=(Cure(name="ep", candidates=lambda asked: divisors((asked.dp or 1) * asked.cp)),),
    ),
    Rule(
        of=("ep", "zero_group", "cp"),
        broken=lambda ep, group, cp: (
            group > 0 and (group * cp) % ep != 0 and ep % (group * cp) != 0
        ),
        seen="{zero_group} and {ep}: one of them has to divide the other",
        cures=(of("zero_group", 0), dividing("ep", "zero_group")),
    ),
    Rule(
        of=("ep", "cp"),
        broken=lambda ep, cp: ep % cp != 0 and cp % ep != 0,
        seen="{ep} and {cp}: one of them has to divide the other",
        cures=(dividing("ep", "cp"),),
    ),
    Rule(
        of=("ep", "num_microbatches"),
        broken=lambda ep, num_microbatches: num_microbatches % ep != 0,
        seen=BATCH_IN + ", which {ep} does not divide",
        cures=(dividing("ep", "num_microbatches"), MICROBATCH),
    ),
    Rule(
        of=("dp", "zero_group"),
        broken=lambda dp, group: group > 0 and dp % group != 0,
        seen="{zero_group} does not divide {dp}",
        cures=(dividing("zero_group", "dp"), of("zero_group", 0)),
    ),
)

OF_THE_WORKERS = (
    Rule(
        of=("least_workers", "auto_workers"),
        broken=lambda least, most: least > most,
        seen=(
            "{tp}{pp: with #}{cp: with #}{ep: with #}{zero_group: in groups of # replicas} needs "
            "{least_workers:value} workers and {max_workers}"
        ),
        cures=(TP, PP_OF_WORKERS, of("zero_group", 0), of("ep", 1), LEAST),
    ),
    Rule(
        of=("elastic_workers", "least_workers", "bound"),
        broken=lambda elastic, least, most: least <= most < elastic,
        seen=(
            "{elastic_pp} asks for a mesh of {elastic_workers:value} workers, and {bound:value} "
            "are the most"
        ),
        cures=(SHORT, LEAST),
    ),
    Rule(
        of=("num_workers", "max_workers"),
        broken=lambda num_workers, most: num_workers > most,
        seen=(
            "{dp}{tp: with #}{pp: with #}{cp: with #} needs {num_workers:value} workers and "
            "{max_workers}"
        ),
        cures=(DP, Cure(name="max_workers", candidates=lambda asked: [asked.num_workers or 1])),
    ),
)

OF_THE_BATCH = (
    Rule(
        of=("global_batch", "microbatch"),
        broken=lambda batch, microbatch: batch % microbatch != 0,
        seen="{global_batch} is not a multiple of {microbatch}",
        cures=(BATCH, MICROBATCH),
    ),
    Rule(
        of=("dp", "num_microbatches"),
        broken=lambda dp, num_microbatches: num_microbatches < dp,
        seen=BATCH_IN + ", too few for {dp} replicas",
        cures=(DP, MICROBATCH),
    ),
    Rule(
        of=("dp", "num_microbatches"),
        broken=lambda dp, num_microbatches: num_microbatches > dp and num_microbatches % dp != 0,
        seen=BATCH_IN + ", which {dp} does not divide",
        cures=(DP, MICROBATCH),
    ),
    Rule(
        of=("most_replicas", "num_microbatches"),
        broken=lambda most, num_microbatches: num_microbatches < most,
        seen=BATCH_IN + ", too few for {most_replicas} replicas",
        cures=(WORKERS_OF_BATCH, MICROBATCH, BATCH),
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
        cures=(TP, of("sequence", False)),
    ),
    Rule(
        of=("virtual_stages", "schedule"),
        broken=lambda stages, schedule: stages > 1 and schedule != "interleaved",
        seen="{virtual_stages} is for the schedule that is interleaved, and {schedule}",
        cures=(of("schedule", "interleaved"), of("virtual_stages", 1)),
    ),
    Rule(
        of=("schedule", "virtual_stages"),
        broken=lambda schedule, stages: schedule == "interleaved" and stages == 1,
        seen="{schedule} takes turns among the virtual stages of a rank, and {virtual_stages}",
        cures=(of("schedule", "1f1b"), VIRTUAL_STAGES),
    ),
    Rule(
        of=("zero_group", "zero_stage"),
        broken=lambda group, stage: group > 0 and stage == 0,
        seen="{zero_group} shares nothing at {zero_stage}",
        cures=(of("zero_stage", 1, 2, 3), of("zero_group", 0)),
    ),
)
