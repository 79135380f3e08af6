"""PipeDream-2BW: no flush, an update for each group of microbatches, two versions of the weights.

A group uses the weights that were made of the group before the one before it: every microbatch has
one version on all ranks, and every gradient is one update old. So a rank keeps two versions, in two
buffers that are written by turns, if a group is no smaller than the pipeline is long: `group` >= p.
A plan only: nothing trains by it yet.

Source: Narayanan et al. 2021 (arXiv:2006.09503), section 3.1.
"""

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.rank_lists import WeightVersions


def two_bw(pipeline: Pipeline, _: int, group: int) -> WeightVersions:
    """Raises: ScheduleError if a group is shorter than the pipeline."""
    if group < pipeline.ranks:
        raise ScheduleError(
            f"group={group} is less than ranks={pipeline.ranks}: an update would come before the "
            f"microbatches of the one before are through; use {pipeline.ranks} or more"
        )
    return WeightVersions(
        of=lambda slot: max(0, slot // group - 1),
        made_by=lambda slot: slot // group + 1 if slot % group == group - 1 else None,
    )
