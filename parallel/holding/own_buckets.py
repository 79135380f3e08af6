"""Which buckets a rank holds: those of its stages, each stage's by itself.

Where the two ends of a pipeline share a parameter, both hold it in a bucket of its own, cut into
the same shards: then what the ones and the others add to its gradient are two buffers of one size.
"""

from collections.abc import Mapping
from dataclasses import replace

from remesh.parallel.model.model_blocks import SharedParameter, shared_parameters
from remesh.parallel.plan.buckets import Bucket, plan_buckets, plan_flat
from remesh.parallel.plan.cut import Cut, Held
from remesh.parallel.plan.model_config import ModelConfig, TensorShape, block_parameters
from remesh.parallel.plan.shares import Share, is_of_experts

_Blocks = dict[int, dict[str, TensorShape]]


def own_buckets(model: ModelConfig, held: Held, shares: Mapping[str, Share]) -> tuple[Bucket, ...]:
    """From the front of the model to its end. No bucket holds blocks of two stages.

    Raises: LayoutError if there are fewer layers than stages.
    """
    pipeline, limit = held.cut.pipeline, held.cut.bucket_elements
    spans, parted = pipeline.spans(model.num_layers), parted_parameters(model, held)
    blocks: _Blocks = {
        number: {name: shares[name].local_shape for name in names}
        for number, names in enumerate(block_parameters(model).values())
    }
    alone = {shared.owner for shared in shared_parameters(model)}
    found: list[Bucket] = []
    for stage in pipeline.stages_of(held.stage):
        of_stage = {number: blocks[number] for number in spans[stage]}
        for shared in parted:
            found += [
                _apart(of_stage, block, shared.source, shares[shared.source])
                for block in {shared.owner, shared.user} & of_stage.keys()
            ]
        apart = _take_experts(of_stage) if held.cut.expert_parts > 1 else {}
        found += plan_buckets({n: b for n, b in of_stage.items() if b}, limit, alone)
        experts = plan_buckets(apart, limit)
        found += [replace(bucket, of_experts=True) for bucket in experts]
    return tuple(found)


def experts_of(model: ModelConfig, cut: Cut, expert: int) -> range | None:
    """Those that an expert rank has, None if each has all."""
    parts = cut.expert_parts
    if parts == 1:
        return None
    count = model.num_experts // parts
    return range(expert * count, (expert + 1) * count)


def _take_experts(blocks: _Blocks) -> _Blocks:
    """The stacks of experts of each block that has some, which the block then has no more."""
    taken: _Blocks = {}
    for number, shapes in blocks.items():
        own = {name: shape for name, shape in shapes.items() if is_of_experts(name)}
        if own:
            taken[number] = own
            blocks[number] = {n: shape for n, shape in shapes.items() if n not in own}
    return taken


def copied_parameters(model: ModelConfig, held: Held) -> frozenset[str]:
    """What this rank holds because a block of its own uses it, whose owner is on another rank."""
    spans = held.cut.pipeline.spans(model.num_layers)
    own = {n for stage in held.cut.pipeline.stages_of(held.stage) for n in spans[stage]}
    return frozenset(
        shared.source
        for shared in parted_parameters(model, held)
        if shared.user in own and shared.owner not in own
    )


def parted_parameters(model: ModelConfig, held: Held) -> tuple[SharedParameter, ...]:
    """Those whose owner and user are on two ranks of a pipeline."""
    pipeline = held.cut.pipeline
    if pipeline.rank_of(0) == pipeline.rank_of(pipeline.num_stages - 1):
        return ()
    return shared_parameters(model)


def _apart(blocks: _Blocks, block: int, name: str, share: Share) -> Bucket:
    """A bucket of this parameter alone, which the block then has no more."""
    blocks[block] = {n: shape for n, shape in blocks[block].items() if n != name}
    return Bucket(blocks=range(block, block + 1), plan=plan_flat({name: share.local_shape}))
