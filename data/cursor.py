"""Where a job stands in its data: one integer, the count of sample positions behind it.

Steps and global batches are numbered from 1 and sample positions from 0, so a resume at any step
computes its place and replays nothing, and the place does not depend on how many replicas there
are or how a step is cut into microbatches.
"""

from remesh.data.skips import Skips

MAX_POSITION = 1 << 62  # of samples: integers of 64 bits count them, with room to spare


def batch_positions(step: int, *, global_batch: int, skips: Skips) -> range:
    """The sample positions that a step consumes, `global_batch` of them."""
    if step < 1:
        raise ValueError(f"step {step}: steps are counted from 1")
    end = skips.batch_of(step) * global_batch
    return range(end - global_batch, end)
