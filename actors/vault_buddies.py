"""Which vault keeps the copies of which: one that does not fail with it, if there is one. Pure."""

from collections.abc import Mapping


def buddy_of(node: str, domains: Mapping[str, str]) -> str | None:
    """The next node in another failure domain, else the next one; None for a node alone.

    `domains` are those of all nodes with a vault. "The next" spreads the copies, since each node
    begins to look behind itself.
    """
    others = sorted(name for name in domains if name != node)
    in_turn = [name for name in others if name > node] + [name for name in others if name < node]
    apart = [name for name in in_turn if domains[name] != domains.get(node)]
    return next(iter(apart or in_turn), None)
