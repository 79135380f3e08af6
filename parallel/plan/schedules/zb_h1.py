"""ZB-H1: backwards in two halves, the second of which fills what would be a bubble.

A neighbour waits for the gradient of a stage's input only, so that is computed first, and the
gradients of the weights later: the rank at position r puts them off by r microbatches. It keeps
min(m, p) microbatches in all, as many as the first rank does under 1F1B.

Legal for every number of microbatches m; the published bubble holds from m = p on.

Source: Qi et al. 2023 (arXiv:2401.10241), section 2: (p - 1)(F + B - W), where B is the half that
gives the gradient of the input.
"""

from collections.abc import Iterator

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.rank_order import Order, Task, by_turns, in_slot_order


def zb_h1(pipeline: Pipeline, rank: int, num_slots: int) -> Order:
    forwards = in_slot_order("forward", rank, num_slots)
    inputs = in_slot_order("input", rank, num_slots)
    weights = in_slot_order("weight", rank, num_slots)
    plain = by_turns(forwards, inputs, pipeline.ranks - 1 - rank)
    return (*_followed(plain, weights, rank), *weights[max(0, num_slots - rank) :])


def zb_h1_in_flight(pipeline: Pipeline, _: int, num_slots: int) -> int:
    """Microbatches that a rank has activations of, at the most."""
    return min(num_slots, pipeline.ranks)


def _followed(plain: Iterator[Task], weights: tuple[Task, ...], delay: int) -> Iterator[Task]:
    """Each input's gradient, with those of the weights of `delay` slots before."""
    for task in plain:
        yield task
        if task.what == "input" and task.slot >= delay:
            yield weights[task.slot - delay]
