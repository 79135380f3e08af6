"""PipeDream with weight stashing: no flush at all, an update after each backward.

A forward uses the newest weights that its rank has, the backward the same ones as the forward: they
are stashed meanwhile. The rank at position r of p keeps at most p - r versions. A microbatch has
other versions on other ranks. A plan only: nothing trains by it yet.

Source: Narayanan et al. 2019 (SOSP, doi:10.1145/3341301.3359646), section 3.3.
"""

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.rank_lists import WeightVersions


def pipedream(pipeline: Pipeline, rank: int, _: int) -> WeightVersions:
    """A slot's forward comes after the backward of the one as many before it as are ahead."""
    ahead = pipeline.ranks - 1 - rank
    return WeightVersions(of=lambda slot: max(0, slot - ahead), made_by=lambda slot: slot + 1)
