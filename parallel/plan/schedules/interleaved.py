"""Interleaved 1F1B: each rank has v stages, and microbatches go round v times.

Legal where p divides the number of microbatches m: they pass a stage in groups of p. A pass is 1/v
as long, so the pipeline fills and empties in 1/v of the time; it sends v times as much, and the
first rank keeps more activations, of (v - 1) p + 2 p - 1 passes at the most.

Source: Narayanan et al. 2021 (arXiv:2104.04473), section 2.2: the bubble is (p - 1)(F + B) / v.
"""

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.operations import Pass
from remesh.parallel.plan.schedules.rank_order import Order, Task, by_turns


def interleaved(pipeline: Pipeline, rank: int, num_slots: int) -> Order:
    stages = pipeline.stages_of(rank)
    forwards = _round_and_round("forward", stages, pipeline.ranks, num_slots)
    backwards = _round_and_round("backward", stages[::-1], pipeline.ranks, num_slots)
    return tuple(by_turns(forwards, backwards, _warm_up(pipeline, rank)))


def interleaved_in_flight(pipeline: Pipeline, rank: int, num_slots: int) -> int:
    """Passes that a rank has activations of, at the most; each is 1/v of its layers."""
    return min(num_slots * pipeline.chunks, _warm_up(pipeline, rank) + 1)


def interleaved_lacks(ranks: int, num_microbatches: int) -> str:
    if num_microbatches % ranks == 0:
        return ""
    return (
        f"microbatches take turns in groups of {ranks}, and a replica has {num_microbatches}, "
        "which is no multiple of it"
    )


def _warm_up(pipeline: Pipeline, rank: int) -> int:
    """Forwards before the first backward: one more round for each further stage of a rank.

    Two apart from rank to rank, not one: a backward comes back after a forward has gone there.
    """
    ranks, chunks = pipeline.ranks, pipeline.chunks
    return (chunks - 1) * ranks + 2 * (ranks - 1 - rank)


def _round_and_round(
    what: Pass, stages: tuple[int, ...], group: int, num_slots: int
) -> tuple[Task, ...]:
    """A group of microbatches through one stage, then through the next one, then the next group."""
    return tuple(
        Task(what=what, slot=slot, stage=stage)
        for first in range(0, num_slots, group)
        for stage in stages
        for slot in range(first, first + group)
    )
