"""Where a new generation gets its state from: a pure function of who holds what.

State that is cut counts only whole: for every part of it some member has to hold that part at the
very same step. A part of another step is no help, since there is no way to roll it forward.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from remesh.orchestrator.control.records import (
    CheckpointState,
    FreshState,
    Held,
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


Holding = tuple[int, Held]  # the step whose state it is, and the part of it
Cut = tuple[int, int]
Part = tuple[int, int]
_Parts = dict[tuple[int, Cut], set[Part]]


def decide_restore(
    members: Sequence[Member], checkpoints: Sequence[CheckpointState], avoid: Collection[str]
) -> Decision | None:
    """The newest state within reach: what members hold together, else a committed checkpoint.

    `checkpoints` are newest first. `avoid` holds the labels of sources that failed before. Without
    any checkpoint, good or bad, the run starts over; None if all there is has to be avoided.

    Cost: linear in the members.
    """
    readable = [state for state in checkpoints if source_label(state) not in avoid]
    parts = _parts((m.at_step, m.held) for m in members if m.at_step is not None)
    peers = _newest_peers(members, parts, avoid)
    if peers is not None and (not readable or readable[0].step <= peers.step):
        reason = f"with the state of {_source_in_words(members, peers)}"
        return Decision(
            restore=peers, from_step=peers.step, reason=reason + _what_is_lost(parts, peers.step)
        )
    if readable:
        newest = readable[0]
        reason = f"with checkpoint {newest.name}" + _what_is_lost(parts, newest.step)
        return Decision(restore=newest, from_step=newest.step, reason=reason)
    fresh = FreshState()
    if checkpoints or source_label(fresh) in avoid:
        return None
    reason = "with fresh parameters" + _what_is_lost(parts, 0)
    return Decision(restore=fresh, from_step=0, reason=reason)


def newest_whole(held: Iterable[Holding]) -> tuple[int, Cut] | None:
    """The newest step whose state these hold together, and how it is cut; None if there is none."""
    return max(
        (key for key, found in _parts(held).items() if is_whole(key[1], found)), default=None
    )


def is_whole(cut: Cut, found: Collection[Part]) -> bool:
    """Whether these are all parts of a state that is cut so."""
    return len(found) == cut[0] * cut[1]


def source_label(restore: Restore) -> str:
    """A source of state in words, by which its failures are remembered."""
    match restore:
        case FreshState():
            return "fresh parameters"
        case PeerState(step=step):
            return f"the peers' state at step {step}"
        case CheckpointState(name=name):
            return f"checkpoint {name}"


def _newest_peers(
    members: Sequence[Member], parts: _Parts, avoid: Collection[str]
) -> PeerState | None:
    whole = [key for key, found in parts.items() if is_whole(key[1], found)]
    if not whole:
        return None
    step, cut = max(whole)
    source = min(m.rank for m in members if m.at_step == step and m.held.cut == cut)
    peers = PeerState(step=step, source=source)
    return None if source_label(peers) in avoid else peers


def _source_in_words(members: Sequence[Member], peers: PeerState) -> str:
    sharded = any(m.held.cut != (1, 1) for m in members if m.at_step == peers.step)
    return "the live ranks" if sharded else f"rank {peers.source}"


def _parts(held: Iterable[Holding]) -> _Parts:
    """Which parts of the state at each step are held, for each way in which it is cut."""
    parts: _Parts = {}
    for step, one in held:
        parts.setdefault((step, one.cut), set()).add(one.part)
    return parts


def _what_is_lost(parts: _Parts, from_step: int) -> str:
    """The first part that is missing of the newest state, if that is newer; else nothing."""
    step, (tp, shard_size) = max(parts, default=(0, (1, 1)))
    if step <= from_step or is_whole((tp, shard_size), parts[step, (tp, shard_size)]):
        return ""
    found = parts[step, (tp, shard_size)]
    every = ((tensor, shard) for tensor in range(tp) for shard in range(shard_size))
    tensor, shard = next(part for part in every if part not in found)
    names = [f"shard {shard} of {shard_size}"] if shard_size > 1 else []
    names += [f"tensor part {tensor} of {tp}"] if tp > 1 else []
    return f", as no live rank holds {' of '.join(names)} at step {step}"
