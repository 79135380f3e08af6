"""The meshes that a run may have, as rungs of a ladder: made once, and picked from ever after.

`planner` makes the ladder as the run starts, the journal holds it, and control takes the largest
rung that there are workers for. So only the rooms of plans know the axes by name.

Rungs that differ in nothing but their number of replicas are written down as one flight, and each
is made when it is asked for. So a ladder of 16,384 workers is made, sent, written and picked from
as one of four. What lost: a list of all rungs, a few megabytes in each journal.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import lcm

from remesh.orchestrator.plan.rung import Rung, Unit
from remesh.orchestrator.plan.staging import Staged, Staging
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Rungs of one kind: `lowest`, and one for every `step` replicas more, up to `last` replicas.

    `shards` ranks share one copy of the state, all those with the same share of the model if it is
    0. `leaves` is that of a flight of one rung. `staging` says of each what its pipelines are.

    Raises: LayoutError if there is no such rung.
    """

    lowest: Layout
    last: int
    step: int = 1
    shards: int = 1
    bucket_elements: int = 0
    unit: Unit = field(default_factory=Unit)
    staging: Staging = field(default_factory=Staging)
    leaves: tuple[int, ...] = ()
    bit_key: str = ""

    def __post_init__(self) -> None:
        if self.last not in self.replicas:
            raise LayoutError(
                f"no mesh has {self.last} replicas: the smallest is {self.lowest}, and {self.step} "
                f"are added at a time"
            )
        if self.lowest.world_size % self.unit.workers:
            raise LayoutError(f"{self.lowest} does not consist of whole {self.unit}")
        if self.lowest.pp != self.staging.pipeline.ranks:
            raise LayoutError(
                f"{self.lowest} has no pipelines of {self.staging.pipeline.ranks} stages"
            )
        if self.leaves and (len(self.replicas) > 1 or len(self.leaves) != self.last):
            raise LayoutError(
                f"leaves are dealt to {len(self.leaves)} replicas; of {self.lowest} there are "
                f"{self.lowest.dp} to {self.last}"
            )

    @staticmethod
    def of_units(  # noqa: PLR0913 - all but two have a default
        *,
        replicas: int,
        unit: Unit,
        copies: int = 1,
        shards: int = 1,
        staging: Staging | None = None,
        bucket_elements: int = 0,
        bit_key: str = "",
    ) -> "Flight":
        """Up to so many replicas, of one unit for each stage; if `shards` share a copy, whole
        groups. In a unit are so many `copies` of each part of a layer, for some tokens each.
        """
        group, staging = max(1, shards // copies), staging or Staging()
        pp, tp = staging.pipeline.ranks, unit.workers // copies
        return Flight(
            lowest=Layout(dp=group, pp=pp, cp=copies, tp=tp),
            last=replicas - replicas % group,
            step=group,
            shards=shards,
            bucket_elements=bucket_elements,
            unit=unit,
            staging=staging,
            bit_key=bit_key,
        )

    def sharing_experts(self, ranks: int) -> "Flight":
        """The same where so many ranks share experts: with whole groups of replicas that have all.

        Raises: LayoutError if there are too few replicas.
        """
        step = lcm(self.step, max(1, ranks // self.lowest.cp))
        lowest = replace(self.lowest, dp=step, ep=ranks)
        return replace(self, lowest=lowest, step=step, last=self.last - self.last % step)

    @property
    def replicas(self) -> range:
        return range(self.lowest.dp, self.last + 1, self.step)

    @property
    def replica_workers(self) -> int:
        return self.lowest.world_size // self.lowest.dp

    @property
    def most_workers(self) -> int:
        return self.last * self.replica_workers

    @property
    def unit_text(self) -> str:
        """Such as "tp groups of 2 on one node each"."""
        axes = {"cp": self.lowest.cp, "tp": self.lowest.tp}
        sharing = " and ".join(axis for axis, degree in axes.items() if degree > 1)
        return self.unit.said(sharing)

    @property
    def highest(self) -> Rung:
        return self.rung(self.last)

    def rung(self, replicas: int) -> Rung:
        layout, staged = replace(self.lowest, dp=replicas), self.staged(replicas)
        shards = self.shards or layout.num_data
        return Rung(
            layout=layout,
            cut=Cut.of(layout, shards, self.bucket_elements, staged.pipeline),
            unit=self.unit,
            schedule=staged.schedule,
            leaves=self.leaves,
            bit_key=self.bit_key,
        )

    def staged(self, replicas: int) -> Staged:
        """What the pipelines of the rung of so many replicas are."""
        return self.staging.of(replicas, self.leaves, self.lowest.replicas_together)

    def rungs(self) -> Iterator[Rung]:
        return map(self.rung, self.replicas)

    def reaching(self, num_workers: int) -> int:
        """Replicas of the smallest rung of at least so many workers, 0 if there is none."""
        missing = max(0, -(-num_workers // self.replica_workers) - self.lowest.dp)
        replicas = self.lowest.dp + -(-missing // self.step) * self.step
        return replicas if replicas <= self.last else 0

    def fitting(self, num_units: int) -> int:
        """Replicas of the largest rung of so many units, 0 if they are too few."""
        most = min(num_units * self.unit.workers // self.replica_workers, self.last)
        fitting = most - (most - self.lowest.dp) % self.step
        return fitting if most >= self.lowest.dp else 0

    def within(self, num_units: int) -> "Flight | None":
        """What there is of it with so many units, None for nothing."""
        replicas = self.fitting(num_units)
        return replace(self, last=replicas) if replicas else None

    def __contains__(self, rung: Rung) -> bool:
        return rung.layout.dp in self.replicas and rung == self.rung(rung.layout.dp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """All rungs of a run, by flights; of equally large rungs that of the first flight is taken.

    `num_leaves` is fixed at the first start of the run: each rung has them all. `reasons` are
    sentences about the rungs, for the user.

    Raises: LayoutError if there is no rung, or one has other leaves.
    """

    flights: tuple[Flight, ...]
    num_leaves: int
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.flights:
            raise LayoutError("a ladder without a rung; name at least one mesh")
        for flight in self.flights:
            if flight.leaves and sum(flight.leaves) != self.num_leaves:
                raise LayoutError(
                    f"{flight.lowest} is dealt {sum(flight.leaves)} leaves of {self.num_leaves}; "
                    f"deal each leaf once"
                )

    @property
    def units(self) -> tuple[Unit, ...]:
        """Each kind of unit once."""
        return tuple(dict.fromkeys(flight.unit for flight in self.flights))

    @property
    def highest(self) -> Rung:
        """The largest one."""
        return max(self.flights, key=lambda flight: flight.most_workers).highest

    def rungs(self) -> Iterator[Rung]:
        """All of them, those of fewest workers first."""
        return heapq.merge(*(f.rungs() for f in self.flights), key=lambda rung: rung.workers)

    def largest(
        self, room: Callable[[Unit], int], *, at_least: int = 1, bit_key: str | None = None
    ) -> Rung | None:
        """The largest rung of at least so many workers that has `room`, None if there is none.

        One with the bits of the first flight, the job's own, comes before a larger one with others,
        then one with this bit key.

        Cost: a few divisions for each flight; one rung is made.
        """
        best = self._largest(room, at_least, bit_key)
        return None if best is None else best[0].rung(best[1])

    def size(
        self, room: Callable[[Unit], int], *, at_least: int = 1, bit_key: str | None = None
    ) -> int:
        """Workers of that rung, 0 if there is none."""
        best = self._largest(room, at_least, bit_key)
        return 0 if best is None else best[0].replica_workers * best[1]

    def flight_for(
        self, room: Callable[[Unit], int], *, at_least: int = 1, bit_key: str | None = None
    ) -> Flight:
        """The flight of that rung; if there is none, the one that reaches highest."""
        best = self._largest(room, at_least, bit_key)
        return max(self.flights, key=lambda f: f.most_workers) if best is None else best[0]

    def improves(
        self, room: Callable[[Unit], int], rung: Rung, workers: int, *, at_least: int = 1
    ) -> bool:
        """Whether that rung comes before this one, of whose workers so many are there."""
        best = self._largest(room, at_least, rung.bit_key)
        if best is None:
            return False
        flight, replicas = best
        there = self._order(rung.bit_key, rung.bit_key, workers)
        return self._order(flight.bit_key, rung.bit_key, replicas * flight.replica_workers) > there

    def smallest(self, at_least: int) -> Rung:
        """The smallest rung of at least so many workers; the highest if all are smaller."""
        flight, replicas = self._smallest(at_least)
        return flight.rung(replicas)

    def needed(self, at_least: int) -> str:
        """Its workers in words, such as "4 in tp groups of 2 on one node each"."""
        flight, replicas = self._smallest(at_least)
        groups = [flight.unit_text] if flight.unit.workers > 1 else []
        if flight.lowest.pp > 1:
            groups.append(f"pipelines of {flight.lowest.pp} stages")
        if flight.lowest.ep > 1:
            groups.append(f"groups of {flight.step} replicas with all experts")
        elif flight.step > 1:
            groups.append(f"ZeRO groups of {flight.step} replicas")
        parts = f" in {' and '.join(groups)}" if groups else ""
        return f"{replicas * flight.replica_workers}{parts}"

    def gains(self, unit: Unit, fewer: int, more: int) -> bool:
        """Whether more of these units make up a larger mesh."""
        flights = [flight for flight in self.flights if flight.unit == unit]
        return any(flight.fitting(more) > flight.fitting(fewer) for flight in flights)

    def within(self, room: Callable[[Unit], int]) -> "Ladder | None":
        """The rungs for which there is ever room, None if there are none."""
        found = [flight.within(room(flight.unit)) for flight in self.flights]
        flights = tuple(flight for flight in found if flight is not None)
        return replace(self, flights=flights) if flights else None

    def of_bits(self, bit_key: str | None) -> "Ladder | None":
        """The rungs with this bit key, None if there are none."""
        flights = tuple(flight for flight in self.flights if flight.bit_key == bit_key)
        return replace(self, flights=flights) if flights else None

    def __contains__(self, rung: Rung) -> bool:
        return any(rung in flight for flight in self.flights)

    def above(self, rung: Rung) -> Rung | None:
        """The next larger rung of its flight, None for the last one."""
        flight = self._flight(rung)
        more = rung.layout.dp + flight.step
        return flight.rung(more) if more <= flight.last else None

    def schedule_reason(self, rung: Rung) -> str:
        """Why its schedule is not the one that the job asks for, empty if it is."""
        return self._flight(rung).staged(rung.layout.dp).reason

    def spare_reason(self, rung: Rung) -> str:
        """Why this mesh takes no further worker."""
        flight = self._flight(rung)
        if rung.layout.dp >= flight.last:
            return f"the job has at most {flight.last} replicas"
        groups = f"groups of {flight.step} replicas" if flight.step > 1 else "replicas"
        workers = flight.step * flight.replica_workers
        return f"a mesh has whole {groups}, {workers} workers at a time"

    def _smallest(self, at_least: int) -> tuple[Flight, int]:
        found = [(flight, flight.reaching(at_least)) for flight in self.flights]
        large = [(flight, replicas) for flight, replicas in found if replicas]
        if large:
            return min(large, key=lambda pair: pair[1] * pair[0].replica_workers)
        highest = max(self.flights, key=lambda flight: flight.most_workers)
        return highest, highest.last

    def _largest(
        self, room: Callable[[Unit], int], at_least: int, bit_key: str | None
    ) -> tuple[Flight, int] | None:
        """The flight and the replicas of the rung to take."""
        best, rank = None, (False, False, 0)
        for flight in self.flights:
            replicas = flight.fitting(room(flight.unit))
            workers = replicas * flight.replica_workers
            ranked = self._order(flight.bit_key, bit_key, workers)
            if workers >= at_least and ranked > rank:
                best, rank = (flight, replicas), ranked
        return best

    def _order(self, bit_key: str, present: str | None, workers: int) -> tuple[bool, bool, int]:
        """The larger it is, the sooner a rung is taken."""
        return bit_key == self.flights[0].bit_key, bit_key == present, workers

    def _flight(self, rung: Rung) -> Flight:
        return next(flight for flight in self.flights if rung in flight)
