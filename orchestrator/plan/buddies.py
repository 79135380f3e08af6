"""Whose vault keeps a copy of whose: one that should not fail together with it.

Everybody keeps copies for one other, as far as the failure domains allow it: in the order of the
domains each node's buddy is as many places further as the largest domain has nodes. What lost: the
nearest node of another domain, which makes one node the buddy of many.
"""

from collections import Counter
from collections.abc import Mapping


def buddies(domains: Mapping[str, str]) -> dict[str, str]:
    """The buddy of each node, one in another failure domain if there is one, else another node.

    `domains` has the failure domain of each node that has a vault; one without a name counts as a
    domain of its own. A single node has no buddy.

    Cost: n log n for n nodes.
    """
    named = {node: (domain, "") if domain else ("", node) for node, domain in domains.items()}
    ring = sorted(named, key=lambda node: (named[node], node))
    if len(ring) < 2:  # noqa: PLR2004 - two are a pair
        return {}
    largest, size = Counter(named.values()).most_common(1)[0]
    rest = [node for node in ring if named[node] != largest]
    found = {}
    for index, node in enumerate(ring):
        buddy = ring[(index + (size % len(ring) or 1)) % len(ring)]
        if named[buddy] == named[node] and rest:  # one of more than half of the nodes
            buddy = rest[index % len(rest)]
        found[node] = buddy
    return found
