"""All schedules by name: where each is legal, and the lists of operations of its ranks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.dualpipe_v import (
    dualpipe_v,
    dualpipe_v_in_flight,
    dualpipe_v_lacks,
)
from remesh.parallel.plan.schedules.gpipe import gpipe, gpipe_in_flight
from remesh.parallel.plan.schedules.interleaved import (
    interleaved,
    interleaved_in_flight,
    interleaved_lacks,
)
from remesh.parallel.plan.schedules.one_forward_one_backward import (
    one_forward_one_backward,
    one_forward_one_backward_in_flight,
)
from remesh.parallel.plan.schedules.operations import Operation, Reduce, Step, Vote
from remesh.parallel.plan.schedules.pipedream import pipedream
from remesh.parallel.plan.schedules.rank_lists import (
    WeightVersions,
    operations_of,
    versioned_operations,
)
from remesh.parallel.plan.schedules.rank_order import Order, one_by_one, side_by_side
from remesh.parallel.plan.schedules.replica_slots import Slot, slots_alone
from remesh.parallel.plan.schedules.two_bw import two_bw
from remesh.parallel.plan.schedules.wiring import ListEntry, wire
from remesh.parallel.plan.schedules.zb_h1 import zb_h1, zb_h1_in_flight

PLAIN = "1f1b"  # legal everywhere: what is used where another one is not

Schedules = tuple[tuple[Operation, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A schedule with one update a step.

    `order` and `in_flight` are given a pipeline, a position in it and a number of slots: what a
    rank computes, and of how many passes it has activations at the most. `lacks` says what is
    wrong with so many ranks and microbatches, or nothing, `legal_for` which numbers of microbatches
    of a replica are legal for so many ranks. `chunks` is the number of stages of a
    rank, None for what the user wants, from 2 on. `paired`: a whole backward may be computed beside
    the forward before it.
    """

    order: Callable[[Pipeline, int, int], Order]
    in_flight: Callable[[Pipeline, int, int], int]
    lacks: Callable[[int, int], str] = lambda _, __: ""
    legal_for: Callable[[int], str] = lambda _: "any number"
    chunks: int | None = 1
    folded: bool = False
    paired: bool = False


PUBLISHED: Mapping[str, Published] = {
    "gpipe": Published(order=gpipe, in_flight=gpipe_in_flight),
    PLAIN: Published(order=one_forward_one_backward, in_flight=one_forward_one_backward_in_flight),
    "interleaved": Published(
        order=interleaved,
        in_flight=interleaved_in_flight,
        lacks=interleaved_lacks,
        legal_for=lambda ranks: f"multiples of {ranks}",
        chunks=None,
    ),
    "zb-h1": Published(order=zb_h1, in_flight=zb_h1_in_flight),
    "dualpipe-v": Published(
        order=dualpipe_v,
        in_flight=dualpipe_v_in_flight,
        lacks=dualpipe_v_lacks,
        legal_for=lambda ranks: f"{2 * ranks} or more",
        chunks=2,
        folded=True,
        paired=True,
    ),
}

# Plans only: nothing trains by them yet. A pipeline, a position in it and the microbatches of an
# update give the versions of that rank's weights.
ASYNCHRONOUS: Mapping[str, Callable[[Pipeline, int, int], WeightVersions]] = {
    "pipedream": pipedream,
    "2bw": two_bw,
}


def legal_schedule(
    wished: str, pipeline_ranks: int, microbatches: Collection[int]
) -> tuple[str, str]:
    """The schedule to use, and why it is another one than the wished; no reason if it is not.

    `microbatches` are the numbers of them that replicas have.
    """
    if wished == PLAIN:
        return PLAIN, ""
    found = (_lacks(wished, pipeline_ranks, number) for number in sorted(microbatches) if number)
    why = next(filter(None, found), "")
    if not why:
        return wished, ""
    return PLAIN, f"{PLAIN} instead of {wished}: {why}; the bits are the same"


def pipeline_of(
    name: str, ranks: int, virtual_stages: int = 1, layers: Sequence[int] = ()
) -> Pipeline:
    """The pipeline that a schedule is for. Raises: LayoutError if the layers are not its."""
    published = _published(name)
    chunks = published.chunks or virtual_stages
    return Pipeline(ranks=ranks, chunks=chunks, folded=published.folded, layers=tuple(layers))


def schedules_of(
    name: str, pipeline: Pipeline, slots: Sequence[Slot], *, shares_experts: bool = False
) -> Schedules:
    """The operations of each rank of one replica's pipeline, for one step.

    Cost: linear in the number of passes, but for sorting those of a rank.
    Raises: as `lists_of`.
    """
    lists = lists_of(name, pipeline, len(slots), shares_experts=shares_experts)
    return tuple(schedule_of(places, slots) for places in lists)


def schedule_of(places: Sequence[ListEntry], slots: Sequence[Slot]) -> tuple[Operation, ...]:
    """The operations of one rank whose list has these places."""
    return (*operations_of(places, slots), Reduce(), Vote(), Step())


def lists_of(
    name: str, pipeline: Pipeline, num_slots: int, *, shares_experts: bool = False
) -> tuple[list[ListEntry], ...]:
    """What each rank computes, gives and takes in a step, whatever microbatches its slots have.

    Where ranks share experts, passes that may be side by side are: one computes while the other
    waits for what is sent to experts. Elsewhere one after the other idles less.

    Cost: linear in the number of passes, but for sorting those of a rank.
    Raises: ScheduleError if there is no such schedule, or it is for other pipelines, or illegal.
    """
    published = _published(name)
    _check_shape(name, pipeline)
    if why := published.lacks(pipeline.ranks, num_slots):
        raise ScheduleError(f"{name} is not legal: {why}; use {PLAIN}")
    visits = side_by_side if published.paired and shares_experts else one_by_one
    orders = [visits(published.order(pipeline, rank, num_slots)) for rank in range(pipeline.ranks)]
    return wire(orders, pipeline)


def asynchronous_schedules_of(
    name: str, pipeline: Pipeline, num_microbatches: int, group: int = 1
) -> Schedules:
    """The operations of each rank while so many microbatches go through, with no flush between.

    An update is for `group` microbatches.
    """
    slots = slots_alone(num_microbatches)
    ranks = range(pipeline.ranks)
    orders = [one_by_one(one_forward_one_backward(pipeline, rank, len(slots))) for rank in ranks]
    versions = [ASYNCHRONOUS[name](pipeline, rank, group) for rank in ranks]
    return tuple(
        tuple(versioned_operations(places, slots, versions[rank]))
        for rank, places in enumerate(wire(orders, pipeline))
    )


def most_in_flight(name: str, pipeline: Pipeline, rank: int, num_microbatches: int) -> int:
    """Of how many passes a rank has activations at the most; each is through one of its stages."""
    return _published(name).in_flight(pipeline, rank, num_microbatches)


def _lacks(name: str, ranks: int, num_microbatches: int) -> str:
    if ranks == 1:
        return "one rank has nobody to wait for"
    return _published(name).lacks(ranks, num_microbatches)


def _published(name: str) -> Published:
    if name not in PUBLISHED:
        raise ScheduleError(f"{name} is no schedule; use {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def _check_shape(name: str, pipeline: Pipeline) -> None:
    published = _published(name)
    fits = pipeline.chunks > 1 if published.chunks is None else pipeline.chunks == published.chunks
    if not fits or pipeline.folded != published.folded:
        wanted = "2 or more" if published.chunks is None else published.chunks
        raise ScheduleError(
            f"{name} is for a pipeline with chunks={wanted} and folded={published.folded}, not for "
            f"one with chunks={pipeline.chunks} and folded={pipeline.folded}"
        )
