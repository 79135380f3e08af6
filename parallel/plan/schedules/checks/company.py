"""Whether ranks that share a part of the state take part in the same collectives."""

from collections.abc import Iterator, Sequence

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    InputBackward,
    KeepCompany,
    Operation,
    Overlap,
    WeightBackward,
)

_Visited = tuple[str, int, bool]  # what, of which stage, whether it ends a leaf


def check_company(schedules: Sequence[Sequence[Operation]]) -> None:
    """`schedules` are those of ranks that gather and reduce together: one position, all replicas.

    Whether a replica has a microbatch or an empty visit, it visits the same stages in the same
    order. Cost: linear in the number of operations. Raises: ScheduleError.
    """
    first = list(visits(schedules[0]))
    for replica, schedule in enumerate(schedules[1:], start=1):
        found = list(visits(schedule))
        for place in range(max(len(first), len(found))):
            if first[place : place + 1] != found[place : place + 1]:
                raise ScheduleError(
                    f"visit {place} of replica {replica} is {_said(found, place)}, that of replica "
                    f"0 is {_said(first, place)}: they would wait for each other"
                )


def visits(schedule: Sequence[Operation]) -> Iterator[_Visited]:
    """What a rank gathers weights and sends gradients for, in order."""
    for operation in schedule:
        match operation:
            case Forward(stage=stage):
                yield "forward", stage, False
            case Backward(stage=stage, ends_leaf=ends_leaf):
                yield "backward", stage, ends_leaf
            case InputBackward(stage=stage):
                yield "input", stage, False
            case WeightBackward(stage=stage, ends_leaf=ends_leaf):
                yield "weight", stage, ends_leaf
            case Overlap(forward=forward, backward=backward):
                for what, stage, ends_leaf in visits((forward, backward)):
                    yield f"paired {what}", stage, ends_leaf
            case KeepCompany(what=what, stage=stage, ends_leaf=ends_leaf):
                yield what, stage, ends_leaf
            case _:
                pass


def _said(found: Sequence[_Visited], place: int) -> str:
    if place >= len(found):
        return "missing"
    what, stage, ends_leaf = found[place]
    return f"{what} of stage {stage}{', the end of a leaf' if ends_leaf else ''}"
