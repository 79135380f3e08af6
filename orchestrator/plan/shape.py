"""What all meshes of a run have in common, and the layout that follows from who is there."""

from dataclasses import dataclass

from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pieces import shard_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A mesh consists of whole tp groups, one a replica: as many as there are, up to `max_dp`.

    From `zero_stage` 1 on, `zero_group` replicas share one copy of the state, all of them if it is
    0. Their number is a multiple of it.
    """

    max_dp: int
    tp: int = 1
    zero_stage: int = 0
    zero_group: int = 0

    @property
    def smallest(self) -> int:
        """Workers of the smallest mesh. Every mesh has a multiple of them."""
        return self.tp * (self.zero_group or 1)

    @property
    def largest(self) -> int:
        """Workers of the largest mesh, 0 if `max_dp` replicas are too few for one."""
        return self.num_fitting(self.max_dp)

    def num_fitting(self, num_groups: int) -> int:
        """Workers of the largest mesh of `num_groups` tp groups, 0 if they are too few for one."""
        dp = min(num_groups, self.max_dp)
        return (dp - dp % (self.zero_group or 1)) * self.tp

    def layout(self, num_groups: int) -> Layout | None:
        """The layout of that mesh, None if there is none."""
        num_workers = self.num_fitting(num_groups)
        return Layout(dp=num_workers // self.tp, tp=self.tp) if num_workers else None

    def shard_size(self, dp: int) -> int:
        """How many replicas share one copy of the state."""
        return shard_size(self.zero_stage, self.zero_group, dp)

    def at_least(self, num_workers: int) -> int:
        """Workers of the smallest mesh that has `num_workers` or more."""
        return max(1, -(-num_workers // self.smallest)) * self.smallest


def spare_reason(shape: Shape, layout: Layout) -> str:
    """Why a mesh of this layout takes no further worker."""
    if layout.dp >= shape.max_dp:
        return f"the job has at most {shape.max_dp} replicas"
    groups = f"groups of {shape.zero_group} replicas" if shape.zero_group else "replicas"
    return f"a mesh has whole {groups}, {shape.smallest} workers at a time"
