"""GPipe: all forwards, then all backwards.

Legal for every number of microbatches m. A rank keeps the activations of all m; with p ranks it
idles for p - 1 passes forward and as many backward.

Source: Huang et al. 2018 (arXiv:1811.06965), section 2.3: a share of (p - 1) / (m + p - 1).
"""

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.rank_order import Order, in_slot_order


def gpipe(_: Pipeline, rank: int, num_slots: int) -> Order:
    return (
        *in_slot_order("forward", rank, num_slots),
        *in_slot_order("backward", rank, num_slots),
    )


def gpipe_in_flight(_: Pipeline, __: int, num_slots: int) -> int:
    """Microbatches that a rank has activations of, at the most."""
    return num_slots
