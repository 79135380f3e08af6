"""What a rank computes in a step, in order: its list out of the lists of its own pipeline.

No rank looks at other replicas: how leaves are dealt among them is a closed form, and a replica
whose exchanges others take part in has as many slots as they have, some of them empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.dealing import Dealing, deal_in_rounds, deal_in_runs
from remesh.parallel.plan.pieces import streams
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import schedules_of
from remesh.parallel.plan.schedules.checks.check import check_schedules
from remesh.parallel.plan.schedules.operations import InputBackward, KeepCompany, Operation
from remesh.parallel.plan.schedules.replica_slots import slots_of
from remesh.parallel.plan.schedules.timing.standings import ending, num_last, standings
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
    """Once those of all ranks of its pipeline are known to be one step. Raises: ScheduleError."""
    slots = slots_of(dealing, mesh.data.rank, spec.microbatches_per_leaf)
    shares_experts = mesh.experts.size > 1
    schedules = schedules_of(name, pipeline, slots, shares_experts=shares_experts)
    check_schedules(schedules, pipeline, slots)
    own = schedules[mesh.position]
    ends = numbers = standings(schedules)
    portions = dealing.portions
    fullest = max(range(len(portions)), key=lambda member: len(portions[member]))
    most = slots_of(dealing, fullest, spec.microbatches_per_leaf)
    if len(most) > len(slots):  # all replicas end together
        ends = standings(schedules_of(name, pipeline, most, shares_experts=shares_experts))
    standing = ending(numbers[mesh.position], ends[mesh.position], num_last(own))
    return RankSchedule(operations=own, standings=standing)


def has_halves(schedule: Sequence[Operation]) -> bool:
    """Whether backward comes in halves anywhere."""
    return any(
        isinstance(operation, InputBackward)
        or (isinstance(operation, KeepCompany) and operation.what == "input")
        for operation in schedule
    )
