"""DualPipeV: a pipeline folded at its last rank, with forwards of one arm beside backwards of the
other.

A rank holds a stage of each arm. In the long middle a forward of either comes with a backward of
the other, so that two passes with nothing to wait for stand side by side; at both ends backwards in
two halves fill what would be a bubble. Legal from m = 2 p microbatches on, for p ranks. A rank
keeps the activations of 2 p + 1 passes, each through half of its layers.

The published bubble is (p - 1)(F&B + B - 3 W), where F&B is a forward and a backward that begin and
end together. Here one follows the other, and what the first gives is not held back: where both take
as long as F + B and F is as long as the input's half, (p - 1)(F + B - 2 W) are left.

The alternative with the same folding, ZB-V, splits every backward; this one only those at the ends.

Source: DeepSeek-AI 2024 (arXiv:2412.19437), section 3.2.1, DualPipe, and DeepSeek-AI's DualPipeV
of 2025, which cuts it in half.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.operations import Pass
from remesh.parallel.plan.schedules.rank_order import Order, Task

_THERE, _BACK = 0, 1  # the two arms, as positions among the stages of a rank


def dualpipe_v(pipeline: Pipeline, rank: int, num_slots: int) -> Order:
    return tuple(_Rank(pipeline.stages_of(rank)).order(pipeline.ranks, rank, num_slots))


def dualpipe_v_in_flight(pipeline: Pipeline, _: int, num_slots: int) -> int:
    """Passes that a rank has activations of, at the most; each is half of its layers."""
    return min(2 * num_slots, 2 * pipeline.ranks + 1)


def dualpipe_v_lacks(ranks: int, num_microbatches: int) -> str:
    if num_microbatches >= 2 * ranks:
        return ""
    return (
        f"a pipeline of {2 * ranks} stages needs as many microbatches to be filled, and a replica "
        f"has {num_microbatches}"
    )


@dataclass(slots=True)
class _Rank:
    """Counts the passes of each kind through each stage, and those that are put off."""

    stages: tuple[int, ...]
    counts: dict[tuple[Pass, int], Iterator[int]] = field(default_factory=dict)
    put_off: deque[Task] = field(default_factory=deque)

    def order(self, ranks: int, rank: int, num_slots: int) -> Iterator[Task]:
        beyond, before = ranks - 1 - rank, rank + 1
        for _ in range(2 * beyond):
            yield self._forward(_THERE)
        for _ in range(before):
            yield self._forward(_THERE)
            yield self._forward(_BACK)
        for _ in range(beyond):
            yield self._input(_BACK)
            yield self.put_off.popleft()
            yield self._forward(_BACK)
        for _ in range(num_slots - 2 * ranks + before):
            yield self._forward(_THERE)
            yield self._backward(_BACK)
            yield self._forward(_BACK)
            yield self._backward(_THERE)
        for _ in range(beyond):
            yield self._backward(_BACK)
            yield self._forward(_BACK)
            yield self._backward(_THERE)
        yield from self._end(beyond, before)

    def _end(self, beyond: int, before: int) -> Iterator[Task]:
        """The last backwards: from the middle of them on in two halves."""
        whole = before
        for number in range(2 * before):
            arm = _THERE if number % 2 else _BACK
            yield self._backward(arm) if number < whole else self._input(arm)
        for _ in range(beyond):
            yield self.put_off.popleft()
            yield self._input(_THERE)
        yield from self.put_off

    def _forward(self, arm: int) -> Task:
        return self._next("forward", arm)

    def _backward(self, arm: int) -> Task:
        return self._next("backward", arm)

    def _input(self, arm: int) -> Task:
        task = self._next("backward", arm)
        self.put_off.append(Task(what="weight", slot=task.slot, stage=task.stage))
        return Task(what="input", slot=task.slot, stage=task.stage)

    def _next(self, what: Pass, arm: int) -> Task:
        slot = next(self.counts.setdefault((what, arm), count()))
        return Task(what=what, slot=slot, stage=self.stages[arm])
