"""What the rule book is asked about: sizes, degrees and a batch."""

import math
from dataclasses import dataclass

# Virtual stages of a rank, where the schedule says how many.
CHUNKS = {"gpipe": 1, "1f1b": 1, "zb-h1": 1, "dualpipe-v": 2}

Value = int | float | str | bool | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Sizes, degrees and a batch; what is None is not known, or left to what it follows from.

    `dp` is None for as many replicas as `max_workers` make. `zero_group` replicas share one copy of
    the state, all of them if it is 0. `layers` are those of each virtual stage, as even as can be
    if there are none. Pipelines may have one of `elastic_pp` stages instead of `pp`. Experts are
    `inner_width` wide inside.
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
    schedule: str = "1f1b"
    virtual_stages: int = 1
    layers: tuple[int, ...] = ()
    cp: int = 1
    ep: int = 1
    num_experts: int | None = None
    top_k: int | None = None
    inner_width: int | None = None
    num_dense_layers: int | None = None
    sequence: bool = False
    zero_stage: int = 0
    zero_group: int = 0
    max_workers: int | None = None
    elastic_pp: tuple[int, ...] = ()

    @property
    def num_microbatches(self) -> int | None:
        batch, microbatch = self.global_batch, self.microbatch
        if batch is None or microbatch is None or batch % microbatch:
            return None
        return batch // microbatch

    @property
    def num_stages(self) -> int:
        """Virtual stages of a pipeline: parts of the model that follow one another."""
        return self.pp * CHUNKS.get(self.schedule, self.virtual_stages)

    @property
    def num_split(self) -> int:
        """Layers of all stages, where they are written down."""
        return sum(self.layers)

    @property
    def pp_degrees(self) -> tuple[int, ...]:
        return (self.pp, *self.elastic_pp)

    @property
    def replica_workers(self) -> int:
        """Workers of one replica. ep adds none: experts lie on the ranks of dp and cp."""
        return self.tp * self.pp * self.cp

    @property
    def least_replica_workers(self) -> int:
        """The same where pipelines are shortest."""
        return self.tp * min(self.pp_degrees) * self.cp

    @property
    def whole_replicas(self) -> int:
        """Replicas are added so many at a time: whole ZeRO groups that have all experts."""
        return math.lcm(self.zero_group or 1, self.ep // math.gcd(self.ep, self.cp))

    @property
    def least_workers(self) -> int:
        """Workers of the smallest mesh with as many stages as the job says."""
        return self.replica_workers * self.whole_replicas

    @property
    def elastic_workers(self) -> int:
        """Workers of the smallest mesh with most stages."""
        return self.tp * max(self.pp_degrees) * self.cp * self.whole_replicas

    @property
    def num_workers(self) -> int | None:
        """Workers of the mesh, where its replicas are counted."""
        return None if self.dp is None else self.dp * self.replica_workers

    @property
    def bound(self) -> int | None:
        """So many workers no mesh may exceed."""
        return self.num_workers if self.max_workers is None else self.max_workers

    @property
    def auto_workers(self) -> int | None:
        """The same where the number of replicas follows from it."""
        return self.max_workers if self.dp is None else None

    @property
    def most_replicas(self) -> int | None:
        """Replicas of the largest mesh, where their number follows from the workers."""
        if self.auto_workers is None:
            return None
        replicas = self.auto_workers // self.least_replica_workers
        return replicas - replicas % self.whole_replicas
