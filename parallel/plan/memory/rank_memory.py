"""What a rank needs of memory at the fullest moment of a step, by what takes it: pure.

Each part is a formula over what the rest of this room plans: buckets, pieces, leaves, shares. It is
what processes were measured to take, and tests/dist holds it against them; the kernels' own scratch
memory is not in it. What an allocator wastes is no formula but a bound, the `gaps`: it differs from
run to run. A table of measured sizes was the alternative: it
has no row for the model that comes next.
Of the ranks of a pipeline the one is meant that needs most.

Source: Rajbhandari et al. 2019 (arXiv:1910.02054), section 3, the state and its shards.
"""

from dataclasses import asdict, dataclass, replace

from remesh.parallel.plan.memory.activations import kept_bytes, passing_bytes
from remesh.parallel.plan.memory.rank_sizes import MASTER_BYTES, RankSizes
from remesh.parallel.plan.memory.sums import gradient_bytes, working_elements

PROCESS_BYTES = 320 << 20  # of a worker before it holds anything: Python, torch, Ray
STATE_BYTES = 12  # of a parameter: itself and two moments, all fp32
NUM_SLOTS = 3  # snapshots of a rank in a vault

# What comes and goes in a step is given back to the system late: glibc keeps up to 64 MB at the end
# of its heap, and what is free between blocks in use. What it kept at the most of 20 layouts, where
# backward comes in halves, was 82 MB.
_MOST_GAPS = 96 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes. `working` are weights beside the master weights, `gradients` all that sums take.

    `passing` is there in a moment only: logits and their gradients, or what the backward of a layer
    holds, whichever is more. `gaps` are what the allocator holds between those at the most.
    `saving` is the copy that a checkpoint is written from, `snapshots` are slots in shared memory,
    here and at the buddy.
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


def rank_memory(sizes: RankSizes) -> RankMemory:
    """Of the rank of its pipeline that needs most.

    Cost: microseconds, whatever the model's size; linear in the stages.
    """
    found = (_at_position(replace(sizes, position=one)) for one in _fullest(sizes))
    return max(found, key=lambda memory: memory.total)


def _fullest(sizes: RankSizes) -> set[int]:
    """Positions one of which needs most: the ends, which have most of everything but layers and the
    front more than what follows it, and the first of those with most layers.
    """
    pipeline = sizes.pipeline
    layers = pipeline.sizes(sizes.model.num_layers)
    totals = [sum(layers[n] for n in pipeline.stages_of(rank)) for rank in range(pipeline.ranks)]
    return {0, min(1, pipeline.ranks - 1), totals.index(max(totals)), pipeline.ranks - 1}


def _at_position(sizes: RankSizes) -> RankMemory:
    owned = sum(run.num * run.pieces.shard_size for run in sizes.buckets)
    activations = kept_bytes(sizes)
    passing = passing_bytes(sizes)
    return RankMemory(
        parameters=MASTER_BYTES * owned,
        moments=(STATE_BYTES - MASTER_BYTES) * owned,
        working=sizes.compute_bytes * working_elements(sizes),
        gradients=gradient_bytes(sizes),
        activations=activations,
        passing=passing,
        gaps=min(2 * (activations + passing), _MOST_GAPS),
    )
