"""Which units a mesh takes of more than it needs, where replicas are pipelines.

Those of one pipeline out of one failure domain, so that its stages talk over short ways, and the
pipelines out of as many domains as there are, so that one that fails takes few replicas along.
"""

from collections import Counter
from collections.abc import Sequence


def spread(domains: Sequence[str], needed: int, stages: int, first: int = 0) -> list[int]:
    """So many units, by their place among these, each given by its domain; `first` of them for
    sure. Of units alike those in front are taken.

    Cost: linear in the units, for each domain.
    """
    taken = list(range(min(first, needed)))
    left: dict[str, list[int]] = {}
    for place in range(len(taken), len(domains)):
        left.setdefault(domains[place], []).append(place)
    counted = Counter(domains[place] for place in taken)
    while len(taken) < needed and left:
        domain = min(left, key=lambda one: _wish(one, counted, left, stages))
        begun = counted[domain] % stages
        number = min(stages - begun, needed - len(taken))
        here = left[domain]
        taken += here[:number]
        counted[domain] += min(number, len(here))
        del here[:number]
        if not here:
            del left[domain]
    return taken


def _wish(
    domain: str, counted: Counter[str], left: dict[str, list[int]], stages: int
) -> tuple[bool, bool, int, int]:
    """Those come first that complete a pipeline, then those with room for one, and few so far."""
    begun = counted[domain] % stages
    missing = stages - begun
    completes = begun > 0 and len(left[domain]) >= missing
    return (not completes, len(left[domain]) < missing, counted[domain] // stages, left[domain][0])
