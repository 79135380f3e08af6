"""What a rank computes in a step, in order: its list out of the lists of its own pipeline.

No rank looks at other replicas: how leaves are dealt among them is a closed form, and a replica
whose exchanges others take part in has as many slots as they have, some of them empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.dealing import Dealing, deal_in_rounds, deal_in_runs
from remesh.parallel.plan.pieces import streams
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import lists_of, schedule_of
from remesh.parallel.plan.schedules.checks.check import check_schedule
from remesh.parallel.plan.schedules.operations import InputBackward, KeepCompany, Operation
from remesh.parallel.plan.schedules.replica_slots import Slot, slots_of
from remesh.parallel.plan.schedules.timing.standings import ending, num_last, wired_standings
from remesh.parallel.plan.schedules.wiring import ListEntry
from remesh.parallel.spec import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """The schedule of each pipeline, and the leaves of each replica: none for as even as can be."""

    schedule: str = "1f1b"
    lengths: Sequence[int] = ()


def dealt(spec: EngineSpec, mesh: Mesh, lengths: Sequence[int]) -> Dealing:
    """Who computes which leaves. Raises: LayoutError if they cannot be dealt so."""
    deal = deal_in_rounds if streams(spec.zero.stage, mesh.shard.size) else deal_in_runs
    together = max(1, mesh.experts.size // mesh.ring.size)  # that hold all experts between them
    dealing = deal(spec.tree, mesh.data.size // mesh.ring.size, lengths, together=together)
    return dealing.in_parts(mesh.ring.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """Operations in order, and for each how far a rank has come that stands before it."""

    operations: tuple[Operation, ...]
    standings: tuple[int, ...]


def rank_schedule(
    spec: EngineSpec, mesh: Mesh, pipeline: Pipeline, dealing: Dealing, name: str
) -> RankSchedule:
    """Once it is known to be the rank's part of a step, in which nobody waits for ever.

    Raises: ScheduleError.
    """

    def shape(slots: Sequence[Slot]) -> ReplicaShape:
        return ReplicaShape(
            name=name,
            pipeline=pipeline,
            num_slots=len(slots),
            num_filled=sum(slot.microbatch is not None for slot in slots),
            shares_experts=mesh.experts.size > 1,
        )

    slots = slots_of(dealing, mesh.data.rank, spec.microbatches_per_leaf)
    own = own_list(shape(slots), mesh.position)
    operations = schedule_of(own.places, slots)
    check_schedule(mesh.position, operations, pipeline, slots)
    portions = dealing.portions
    fullest = max(range(len(portions)), key=lambda member: len(portions[member]))
    most, end = slots_of(dealing, fullest, spec.microbatches_per_leaf), own.end
    if len(most) > len(slots):  # all replicas end together
        end = own_list(shape(most), mesh.position).end
    standings = ending(own.numbers, end, num_last(operations))
    return RankSchedule(operations=operations, standings=standings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShape:
    """All that the lists of a replica follow from, but for which microbatches it has."""

    name: str
    pipeline: Pipeline
    num_slots: int
    num_filled: int
    shares_experts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnList:
    """A rank's list, how far it has come at each operation, and the number of the step's end."""

    places: Sequence[ListEntry]
    numbers: tuple[int, ...]
    end: int


@lru_cache(maxsize=4)
def own_list(shape: ReplicaShape, position: int) -> OwnList:
    """Out of those of the whole pipeline, which long pipelines take seconds for.

    A run comes back to the shapes that it has had, and most replicas of a mesh have the same one.
    """
    lists = lists_of(
        shape.name, shape.pipeline, shape.num_slots, shares_experts=shape.shares_experts
    )
    numbers, end = wired_standings(lists, shape.num_filled, position)
    return OwnList(places=tuple(lists[position]), numbers=numbers, end=end)


def has_halves(schedule: Sequence[Operation]) -> bool:
    """Whether backward comes in halves anywhere."""
    return any(
        isinstance(operation, InputBackward)
        or (isinstance(operation, KeepCompany) and operation.what == "input")
        for operation in schedule
    )
