"""A schedule of a pipeline in letters: who computes what when, how long it idles, what it keeps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import (
    ASYNCHRONOUS,
    PUBLISHED,
    Schedules,
    asynchronous_schedules_of,
    legal_schedule,
    pipeline_of,
    schedules_of,
)
from remesh.parallel.plan.schedules.checks.check import check_asynchronous, check_schedules
from remesh.parallel.plan.schedules.checks.kept import peak_in_flight, peak_versions
from remesh.parallel.plan.schedules.replica_slots import slots_alone
from remesh.parallel.plan.schedules.timing.drawing import draw, legend
from remesh.parallel.plan.schedules.timing.timeline import PassCosts, Timeline, time_line

INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSchedule:
    """What stood on the command line; `costs` are those of a forward and of a backward's halves."""

    name: str
    ranks: int
    microbatches: int
    virtual_stages: int | None = None
    costs: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePage:
    """A schedule that has been made and checked, with its times. `why` it is not the asked one."""

    asked: AskedSchedule
    used: str
    why: str
    pipeline: Pipeline
    lists: Schedules
    timeline: Timeline

    def lines(self, width: int) -> Iterator[str]:
        """Time as columns, as many as fit into the width, and figures in words."""
        if self.why:
            yield self.why
        yield from draw(self.timeline, self.pipeline).bands(width)
        yield legend(self.lists, self.pipeline)
        idle = [int(self.timeline.idle(rank)) for rank in range(self.pipeline.ranks)]
        whole, share = count(int(self.timeline.length), "unit"), self.timeline.bubble
        yield f"idle: {_of_each(idle)} of {whole} of time, {float(share):.1%} of all ranks' time"
        passes = _of_each([peak_in_flight(schedule) for schedule in self.lists])
        part = f" through 1/{self.pipeline.chunks} of a rank's layers" * (self.pipeline.chunks > 1)
        yield f"in flight: {passes} at the most, each the activations of a pass{part}"
        yield from self._rules()

    def _rules(self) -> Iterator[str]:
        if self.used in ASYNCHRONOUS:
            versions = _of_each([peak_versions(schedule) for schedule in self.lists])
            yield f"weights: {versions} at the most, each a version"
            yield "a plan only: nothing trains by it yet"
        for name in dict.fromkeys([self.asked.name, self.used]):
            if name in PUBLISHED:
                numbers = PUBLISHED[name].legal_for(self.pipeline.ranks)
                yield f"microbatches of a replica: {numbers} for {name}"

    def values(self) -> Mapping[str, Any]:
        """The same for a program."""
        return {
            "schedule": self.used,
            "reason": self.why or None,
            "pp": self.pipeline.ranks,
            "virtual_stages": self.pipeline.chunks,
            "microbatches": self.asked.microbatches,
            "length": float(self.timeline.length),
            "bubble": float(self.timeline.bubble),
            "ranks": [
                {
                    "stages": list(self.pipeline.stages_of(rank)),
                    "idle": float(self.timeline.idle(rank)),
                    "in_flight": peak_in_flight(schedule),
                    "versions": peak_versions(schedule),
                    "operations": [
                        {"operation": str(one.operation), "start": one.start, "end": one.end}
                        for one in self.timeline.ranks[rank]
                    ],
                }
                for rank, schedule in enumerate(self.lists)
            ],
        }


def _of_each(values: list[int]) -> str:
    """One number where all ranks have the same, else that of each."""
    return ", ".join(map(str, values if len(set(values)) > 1 else values[:1]))


def schedule_page(asked: AskedSchedule) -> SchedulePage:
    """Raises: UserError if there is no such schedule, or options are of another one."""
    _check_asked(asked)
    used, why = asked.name, ""
    if asked.name in PUBLISHED:
        used, why = legal_schedule(asked.name, asked.ranks, [asked.microbatches])
    pipeline, lists = _made(used, asked)
    forward, halved, weight = asked.costs
    costs = PassCosts(forward=forward, input=halved, weight=weight)
    return SchedulePage(
        asked=asked,
        used=used,
        why=why,
        pipeline=pipeline,
        lists=lists,
        timeline=time_line(lists, costs),
    )


def _made(used: str, asked: AskedSchedule) -> tuple[Pipeline, Schedules]:
    slots = slots_alone(asked.microbatches)
    if used in ASYNCHRONOUS:
        pipeline = Pipeline(ranks=asked.ranks)
        lists = asynchronous_schedules_of(used, pipeline, asked.microbatches, asked.ranks)
        check_asynchronous(lists, pipeline, slots)
    else:
        pipeline = pipeline_of(used, asked.ranks, asked.virtual_stages or 2)
        lists = schedules_of(used, pipeline, slots)
        check_schedules(lists, pipeline, slots)
    return pipeline, lists


def _check_asked(asked: AskedSchedule) -> None:
    names = [*PUBLISHED, *ASYNCHRONOUS]
    if asked.name not in names:
        raise UserError(f"--schedule {asked.name} is unknown; use one of {', '.join(names)}")
    if asked.virtual_stages is not None and asked.name != INTERLEAVED:
        raise UserError(f"--virtual-stages is for {INTERLEAVED}, not for {asked.name}")
