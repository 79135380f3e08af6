"""Whether the tables of a job agree: what the rule book is asked, by the keys of the job file."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from remesh.orchestrator.job.tables.cut_tables import ParallelTable, ZeroTable
from remesh.orchestrator.job.tables.kinds import MAX_DEGREE, MAX_DIMENSION
from remesh.orchestrator.job.tables.model_table import ModelTable
from remesh.orchestrator.job.tables.run_tables import ElasticTable
from remesh.orchestrator.job.tables.train_tables import TrainTable
from remesh.parallel.plan.book.asked import Asked
from remesh.parallel.plan.book.cures import Cure
from remesh.parallel.plan.book.rules import RULES, WITHOUT_EFFECT, Rule
from remesh.parallel.plan.book.verdict import Names, problems

KEYS = {
    "num_layers": "model.num_layers",
    "width": "model.width",
    "num_heads": "model.num_heads",
    "num_kv_heads": "model.num_kv_heads",
    "ffn_width": "model.ffn_width",
    "positions": "model.positions",
    "seq_len": "train.seq_len",
    "global_batch": "train.global_batch",
    "microbatch": "train.microbatch",
    "dp": "parallel.dp",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "schedule": "parallel.schedule",
    "virtual_stages": "parallel.virtual_stages",
    "layers": "parallel.layers",
    "cp": "parallel.cp",
    "ep": "parallel.ep",
    "num_experts": "model.num_experts",
    "top_k": "model.top_k",
    "inner_width": "model.expert_width",
    "num_dense_layers": "model.num_dense_layers",
    "sequence": "parallel.sequence",
    "zero_stage": "zero.stage",
    "zero_group": "zero.group",
    "max_workers": "elastic.max_workers",
    "elastic_pp": "elastic.pp",
}


def _at_most(name: str, limit: int) -> Rule:
    """What the type of a key has seen to: asked again of each cure, so that none is beyond it."""
    return Rule(
        of=(name,),
        broken=lambda value: value > limit,
        seen=f"{{{name}}} is above {limit}",
        cures=(Cure(name=name, candidates=lambda _: (limit,)),),
    )


DEGREES = ("dp", "tp", "pp", "virtual_stages", "cp", "ep", "zero_group", "max_workers")
DIMENSIONS = ("num_layers", "width", "num_heads", "num_kv_heads", "ffn_width", "seq_len")
LIMITS = tuple(
    _at_most(name, limit)
    for names, limit in (
        (DEGREES, MAX_DEGREE),
        ((*DIMENSIONS, "global_batch", "microbatch"), MAX_DIMENSION),
    )
    for name in names
)


# What cannot be, and what the user who writes it down means something else by.
POSSIBLE = RULES + LIMITS
EVERY_RULE = RULES + WITHOUT_EFFECT + LIMITS


class Tables(Protocol):
    """Those of a job that the rule book is about."""

    @property
    def model(self) -> ModelTable: ...
    @property
    def train(self) -> TrainTable: ...
    @property
    def parallel(self) -> ParallelTable: ...
    @property
    def zero(self) -> ZeroTable: ...
    @property
    def elastic(self) -> ElasticTable: ...


def rule_problems(tables: Tables, rules: Sequence[Rule]) -> Iterator[str]:
    """What speaks against this model, batch and degrees: first what could never be, then the rest.

    A `dp` that the user wrote down says how many workers there are: the bound on them counts only
    if it is written down too.
    """
    model, train, parallel = tables.model, tables.train, tables.parallel
    zero, elastic = tables.zero, tables.elastic
    fixed = None if parallel.dp == "auto" else parallel.dp
    bounded = fixed is None or "max_workers" in elastic.model_fields_set
    asked = Asked(
        num_layers=model.num_layers,
        width=model.width,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads if "num_kv_heads" in model.model_fields_set else None,
        ffn_width=model.ffn_width,
        positions=model.positions,
        num_experts=model.num_experts,
        top_k=model.top_k,
        inner_width=model.expert_width or model.ffn_width,
        num_dense_layers=model.num_dense_layers,
        seq_len=train.seq_len,
        global_batch=train.global_batch,
        microbatch=train.microbatch,
        dp=fixed,
        tp=parallel.tp,
        pp=parallel.pp,
        schedule=parallel.schedule,
        virtual_stages=parallel.virtual_stages,
        layers=parallel.layers,
        cp=parallel.cp,
        ep=parallel.ep,
        sequence=parallel.sequence,
        zero_stage=zero.stage,
        zero_group=zero.group,
        max_workers=elastic.max_workers if bounded else None,
        elastic_pp=elastic.pp,
    )
    return problems(asked, rules, _names(asked))


def _names(asked: Asked) -> Names:
    """Replicas are as many as the workers make where pipelines are shortest."""
    stages = min(asked.pp_degrees)
    shared = [KEYS[axis] for axis, degree in (("tp", asked.tp), ("cp", asked.cp)) if degree > 1]
    if stages > 1:
        shared.append(KEYS["pp"] if stages == asked.pp else f"{KEYS['elastic_pp']} of {stages}")
    replicas = " / ".join((KEYS["max_workers"], *shared))
    return Names(keys={**KEYS, "most_replicas": replicas}, equals=" = ")
