"""1F1B, also called PipeDream-Flush: a backward as soon as there can be one.

Legal for every number of microbatches m. It idles as long as GPipe, but the rank at position r
keeps the activations of p - r microbatches only, however many there are.

Source: Narayanan et al. 2021 (arXiv:2006.09503), section 3.2, and (arXiv:2104.04473), section 2.2.
"""

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.rank_order import Order, by_turns, in_slot_order


def one_forward_one_backward(pipeline: Pipeline, rank: int, num_slots: int) -> Order:
    forwards = in_slot_order("forward", rank, num_slots)
    backwards = in_slot_order("backward", rank, num_slots)
    return tuple(by_turns(forwards, backwards, pipeline.ranks - 1 - rank))


def one_forward_one_backward_in_flight(pipeline: Pipeline, rank: int, num_slots: int) -> int:
    """Microbatches that a rank has activations of, at the most."""
    return min(num_slots, pipeline.ranks - rank)
