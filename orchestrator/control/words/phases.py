"""The phases of a run and the legal moves between them, as data.

FENCING is a phase of its own, apart from DRAINING: a drain ends at a step boundary that all members
agree on and may save, a fence ends now and promises nothing; what a deadline means differs too.
What parked workers save without a mesh is the end of a drain as well: files are waited for.
"""

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    WAITING = "waiting"
    FORMING = "forming"
    RESTORING = "restoring"
    RUNNING = "running"
    DRAINING = "draining"
    FENCING = "fencing"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"


ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.STOPPED, Phase.PREEMPTED})
_CUT_SHORT = frozenset({Phase.FENCING, Phase.FAILED, Phase.STOPPED, Phase.PREEMPTED})

MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.FORMING, Phase.DRAINING}) | ENDED,
    Phase.FORMING: frozenset({Phase.RESTORING}) | _CUT_SHORT,
    Phase.RESTORING: frozenset({Phase.RUNNING}) | _CUT_SHORT,
    Phase.RUNNING: frozenset({Phase.DRAINING, Phase.FENCING, Phase.FAILED, Phase.STOPPED}),
    Phase.DRAINING: frozenset({Phase.FORMING, Phase.WAITING, Phase.FENCING}) | ENDED,
    Phase.FENCING: frozenset({Phase.FORMING, Phase.WAITING, Phase.DRAINING}) | ENDED,
    Phase.FINISHED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
    Phase.PREEMPTED: frozenset(),
}


def check_move(before: Phase, after: Phase) -> Phase:
    """`after`, if the table allows it."""
    assert after in MOVES[before], f"no move from {before} to {after}"
    return after


def diagram() -> str:
    """The table as the Mermaid state diagram that stands in the README."""
    moves = [
        f"{before} --> {after}" for before in Phase for after in Phase if after in MOVES[before]
    ]
    ends = [f"{phase} --> [*]" for phase in Phase if phase in ENDED]
    return "\n    ".join(["stateDiagram-v2", f"[*] --> {Phase.WAITING}", *moves, *ends])
