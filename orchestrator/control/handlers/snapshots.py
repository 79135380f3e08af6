"""What the user is told of snapshots: that there are none for a while, and why.

Memory that is full is so on many ranks at once, and each of them says it. So a reason is said once
a generation, and of many different ones the first few: the others are in the workers' logs.
"""

from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import SnapshotsPaused

MOST_REASONS = 3


def on_paused(turn: Turn, event: SnapshotsPaused) -> None:
    paused = turn.state.vaults.paused
    if event.reason in paused or len(paused) >= MOST_REASONS:
        return
    paused.add(event.reason)
    turn.say(
        f"no snapshots in memory for now, a loss goes back to the newest one or to a checkpoint: "
        f"{event.worker} says that {event.reason}"
    )
