"""What a rank is given for a step, and what it tells meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.schedules.operations import Operation
from remesh.parallel.techniques.taking_turns import TurnWord

TokenBuffer = np.ndarray[tuple[int, int], np.dtype[np.uint16]]
SampleSums = tuple[int, int, int]  # of the digests of samples: high, low, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a rank needs for one step.

    `fill(first, out)` puts the samples from `first` on, counted in the global batch, into `out`
    and returns the sums of their digests; `write_digest` writes those of a whole step as text.
    `stamp(step, standing, phase)` is told where the rank stands, as a number that can be compared
    with those of others, `reach`, if there is one, before what operation, `trace`, if there is one,
    how its passes go about the messages of experts.

    `snapshots` tells the newest step of which this rank has one that survives its node, None on all
    where no rank has a vault, and whether it can take one of this step. It is asked at the vote: by
    then the one before is safe that was copied as the step began, and its predecessor's slot free.
    """

    mesh: Mesh
    fence: GenerationFence
    generation: int
    fill: Callable[[int, TokenBuffer], SampleSums]
    write_digest: Callable[[SampleSums], str]
    stamp: Callable[[int, int, int], None]
    reach: Callable[[Operation], None] | None = None
    trace: Callable[[TurnWord], None] | None = None
    drain: bool = False
    save: bool = False
    snapshots: Callable[[], tuple[int | None, bool]] = lambda: (None, False)
