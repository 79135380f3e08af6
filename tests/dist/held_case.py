"""A layout whose memory is measured. It travels to the processes, which know no file of tests."""

from dataclasses import dataclass, field, replace

from small_engine import spec, zero

from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.schedules.catalogue import pipeline_of

BUCKET_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layout, and what of the engine's spec is not as usual."""

    layout: Layout = field(default_factory=Layout)
    stage: int = 0
    leaves: int = 4
    per_leaf: int = 1
    schedule: str = "1f1b"
    kind: dict = field(default_factory=dict)
    more: dict = field(default_factory=dict)

    @property
    def pipeline(self):
        return pipeline_of(self.schedule, self.layout.pp, 2)

    def spec(self, model):
        shared = zero(self.stage, bucket_bytes=BUCKET_BYTES)
        more = {**self.more, "model": replace(model, **self.kind), "zero": shared}
        return spec(self.leaves, self.per_leaf, **more)
