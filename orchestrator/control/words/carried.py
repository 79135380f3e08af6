"""What one start of a run hands on to the next: what it has learned to mistrust, and a wish.

Without it a run that is submitted again, as a cluster does by itself, has its whole budget of
failures before it, and meets the host or the checkpoint again that ended it.
"""

from dataclasses import dataclass

from remesh.orchestrator.plan.wish import LayoutWish


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHost:
    """A host that was lost `losses` times, last at `last_s`, on the journal's clock.

    `host` is its address, or a node's name where only one of several nodes of a host was lost.
    """

    host: str
    losses: int
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """`bad_sources` are labels of sources of state, with the number of times that each failed.

    `failures` are those of the budget, with the step that they count from and the last `cause`.
    `layout` is what somebody has asked of its degrees, `bit_key` that of its newest mesh, empty
    before the first one.
    """

    hosts: tuple[LostHost, ...] = ()
    bad_sources: tuple[tuple[str, int], ...] = ()
    failures: int = 0
    at_step: int = 0
    cause: str = ""
    layout: LayoutWish | None = None
    bit_key: str = ""
