"""What a rank keeps while it carries out its list: activations, and versions of its weights."""

from collections import Counter
from collections.abc import Mapping, Sequence

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    Operation,
    Overlap,
    Stash,
    Step,
    WeightBackward,
)


def peak_in_flight(schedule: Sequence[Operation]) -> int:
    """Of how many passes it has activations at the most: from a forward to the end of its backward.

    Each is of one microbatch through one of the rank's stages.
    """
    held = most = 0
    for operation in schedule:
        if isinstance(operation, Overlap):
            held += isinstance(operation.forward, Forward)
            most = max(most, held)
            held -= isinstance(operation.backward, Backward)
        elif isinstance(operation, Forward):
            held += 1
            most = max(most, held)
        elif isinstance(operation, Backward | WeightBackward):
            held -= 1
    return most


def freed_after(schedule: Sequence[Operation]) -> Mapping[int, Operation]:
    """Of each version that is replaced, the last operation that has it.

    That is the last backward with it, or the update that replaces it, if no backward comes after.
    """
    last: dict[int, Operation] = {}
    replaced: set[int] = set()
    for operation in schedule:
        if isinstance(operation, Forward | Backward):
            last[operation.version] = operation
        elif isinstance(operation, Step):
            last.setdefault(operation.version - 1, operation)
            replaced.add(operation.version - 1)
    return {version: operation for version, operation in last.items() if version in replaced}


def peak_versions(schedule: Sequence[Operation]) -> int:
    """How many versions of its weights it keeps at the most.

    An update writes to the buffer of a version that nobody needs any more, if there is one.
    """
    uses = Counter(one.version for one in schedule if isinstance(one, Forward | Backward))
    newest, most = 0, 1
    kept = {0}
    for operation in schedule:
        if isinstance(operation, Forward | Backward):
            uses[operation.version] -= 1
        elif isinstance(operation, Step):
            newest = operation.version
            kept.add(newest)
        else:
            continue
        kept = {version for version in kept if version == newest or uses[version]}
        most = max(most, len(kept))
    return most


def check_versions(rank: int, schedule: Sequence[Operation]) -> None:
    """Whether each pass has weights that are there, and a backward those of its forward.

    A version is there while it is the newest, and later if it was put aside in time.
    Raises: ScheduleError.
    """
    newest = 0
    stashed: set[int] = set()
    forwards: dict[tuple[int, int], int] = {}
    for operation in schedule:
        if isinstance(operation, Stash):
            _want(operation.version == newest, rank, operation, f"while {newest} is the newest")
            stashed.add(operation.version)
        elif isinstance(operation, Step):
            _want(operation.version == newest + 1, rank, operation, f"after version {newest}")
            newest = operation.version
        elif isinstance(operation, Forward | Backward):
            there = operation.version == newest or operation.version in stashed
            _want(there, rank, operation, "with weights that are not there")
            part = operation.stage, operation.microbatch
            own = forwards.setdefault(part, operation.version)
            _want(operation.version == own, rank, operation, f"though its forward had {own}")


def _want(holds: bool, rank: int, operation: Operation, otherwise: str) -> None:  # noqa: FBT001
    if not holds:
        raise ScheduleError(f"rank {rank}: {operation} comes {otherwise}")
