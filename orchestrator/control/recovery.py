"""Where a new generation gets its state from: a pure function of who holds what."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from remesh.orchestrator.control.records import (
    CheckpointState,
    FreshState,
    Member,
    PeerState,
    Restore,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`restore` brings every member to the state at `from_step`; `reason` ends a sentence."""

    restore: Restore
    from_step: int
    reason: str


def decide_restore(
    members: Sequence[Member], checkpoints: Sequence[CheckpointState], avoid: Collection[str]
) -> Decision | None:
    """The newest state within reach: what a member holds whole, else a committed checkpoint.

    `checkpoints` are newest first. `avoid` holds the labels of sources that failed before. Without
    any checkpoint, good or bad, the run starts over; None if all there is has to be avoided.
    """
    readable = [state for state in checkpoints if source_label(state) not in avoid]
    peers = _newest_peers(members, avoid)
    if peers is not None and (not readable or readable[0].step <= peers.step):
        return Decision(
            restore=peers, from_step=peers.step, reason=f"with the state of rank {peers.source}"
        )
    if readable:
        newest = readable[0]
        reason = f"with checkpoint {newest.name}"
        return Decision(restore=newest, from_step=newest.step, reason=reason)
    fresh = FreshState()
    if checkpoints or source_label(fresh) in avoid:
        return None
    return Decision(restore=fresh, from_step=0, reason="with fresh parameters")


def source_label(restore: Restore) -> str:
    """A source of state in words, by which its failures are remembered."""
    match restore:
        case FreshState():
            return "fresh parameters"
        case PeerState(step=step):
            return f"the peers' state at step {step}"
        case CheckpointState(name=name):
            return f"checkpoint {name}"


def _newest_peers(members: Sequence[Member], avoid: Collection[str]) -> PeerState | None:
    held = [(member.at_step, -member.rank) for member in members if member.at_step is not None]
    if not held:
        return None
    step, negative_rank = max(held)
    peers = PeerState(step=step, source=-negative_rank)
    return None if source_label(peers) in avoid else peers
