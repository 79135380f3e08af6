"""Which units a mesh takes of more than it needs, where replicas are pipelines.

Those of one pipeline out of one failure domain, so that its stages talk over short ways, and the
pipelines out of as many domains as there are, so that one that fails takes few replicas along.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


def spread(domains: Sequence[str], needed: int, stages: int, first: int = 0) -> list[int]:
    """So many units, by their place among these, each given by its domain; `first` of them for
    sure. Of units alike those in front are taken.

    Cost: n log n for n units.
    """
    taken = list(range(min(first, needed)))
    pools: dict[str, _Pool] = defaultdict(_Pool)
    for place, domain in enumerate(domains):
        if place < len(taken):
            pools[domain].num_taken += 1
        else:
            pools[domain].left.append(place)
    heap = [(pool.wish(stages), domain) for domain, pool in pools.items() if pool.left]
    heapq.heapify(heap)
    while heap and len(taken) < needed:
        _, domain = heapq.heappop(heap)
        pool = pools[domain]
        taken += pool.take(min(pool.missing(stages), needed - len(taken)))
        if pool.num_left:
            heapq.heappush(heap, (pool.wish(stages), domain))
    return taken


@dataclass(slots=True)
class _Pool:
    """The units of a domain: those that are `left`, from `start` on, and how many are taken."""

    left: list[int] = field(default_factory=list)
    start: int = 0
    num_taken: int = 0

    @property
    def num_left(self) -> int:
        return len(self.left) - self.start

    def missing(self, stages: int) -> int:
        """Units until a pipeline is complete that has been begun, or until the next one is."""
        return stages - self.num_taken % stages

    def wish(self, stages: int) -> tuple[bool, bool, int, int]:
        """Those come first that complete a pipeline, then those with room for one, and few so far.

        Cost: the same for any number of units.
        """
        lacks = self.num_left < self.missing(stages)
        completes = self.num_taken % stages > 0 and not lacks
        return (not completes, lacks, self.num_taken // stages, self.left[self.start])

    def take(self, number: int) -> list[int]:
        found = self.left[self.start : self.start + number]
        self.start += len(found)
        self.num_taken += len(found)
        return found
