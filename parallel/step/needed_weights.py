"""Which buckets of weights a rank's schedule needs, phase by phase: what comes when follows.

The schedule as a whole, not one pass through a stage: the pass before tells what is there already,
and the one after what to bring meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    InputBackward,
    KeepCompany,
    Operation,
    Overlap,
    WeightBackward,
)

_NONE: frozenset[int] = frozenset()


def plan_phases(
    schedule: Sequence[Operation],
    spans: Mapping[int, range],
    needs: Mapping[int, frozenset[int]],
    reads_weights: Collection[int],
) -> list[frozenset[int]]:
    """The buckets of each phase of a rank's schedule: one phase for each block of each operation.

    `spans` are the blocks of its stages, `needs` the buckets of each block, `reads_weights` the
    blocks whose backward needs them again; gradients of weights alone need none. Of two passes at
    once a block of each is one phase.
    """
    phases: list[frozenset[int]] = []
    for operation in schedule:
        match operation:
            case Forward(stage=stage) | KeepCompany(what="forward", stage=stage):
                phases += [needs[number] for number in spans[stage]]
            case (
                Backward(stage=stage)
                | InputBackward(stage=stage)
                | KeepCompany(what="backward" | "input", stage=stage)
            ):
                backward = reversed(spans[stage])
                phases += [needs[n] if n in reads_weights else _NONE for n in backward]
            case WeightBackward(stage=stage) | KeepCompany(what="weight", stage=stage):
                phases += [_NONE] * len(spans[stage])
            case Overlap(forward=forward, backward=backward):
                both = (
                    plan_phases([one], spans, needs, reads_weights) for one in (backward, forward)
                )
                phases += [a | b for a, b in zip_longest(*both, fillvalue=_NONE)]
            case _:
                pass
    return phases
