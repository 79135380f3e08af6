"""Where a new generation gets its state from: a pure function of who holds what.

State that is cut counts only whole: for every part of it some member, or a slot of a vault, has to
hold that part at the very same step. A part of another step is no help, since there is no way to
roll it forward.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from remesh.orchestrator.control.words.records import (
    CheckpointState,
    FreshState,
    Held,
    Member,
    PeerState,
    Restore,
    VaultSlot,
)

MAX_NAMES = 3  # in a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`restore` brings every member to the state at `from_step`; `reason` ends a sentence."""

    restore: Restore
    from_step: int
    reason: str


Holding = tuple[int, Held]  # the step whose state it is, and the part of it
Cut = tuple[int, int]
Part = tuple[int, int]
Parts = dict[tuple[int, Cut], set[Part]]


def decide_restore(
    members: Sequence[Member],
    checkpoints: Sequence[CheckpointState],
    avoid: Collection[str],
    slots: Sequence[VaultSlot] = (),
) -> Decision | None:
    """The newest state within reach: what members and vaults hold together, else a checkpoint.

    `checkpoints` are the committed ones, newest first. `avoid` holds the labels of sources that
    failed before. `slots` are those of living vaults that the run stands on. Without any
    checkpoint, good or bad, the run starts over; None if all there is has to be avoided.

    Cost: linear in the members and slots.
    """
    readable = [state for state in checkpoints if source_label(state) not in avoid]
    live = parts_of((m.at_step, m.held) for m in members if m.at_step is not None)
    stored = parts_of((slot.step, slot.held) for slot in slots)
    peers = _newest_peers(members, live, slots, stored)
    if peers is not None and source_label(peers) in avoid:
        peers = None
    if peers is not None and (not readable or readable[0].step <= peers.step):
        restore: Restore = peers
        from_step, reason = peers.step, f"with the state {_source_in_words(members, peers)}"
    elif readable:
        restore = readable[0]
        from_step, reason = restore.step, f"with checkpoint {restore.name}"
    else:
        restore, from_step, reason = FreshState(), 0, "with fresh parameters"
        if checkpoints or source_label(restore) in avoid:
            return None
    holders = "neither a live rank nor a vault holds" if slots else "no live rank holds"
    reason += _what_is_lost(live, stored, from_step, holders)
    return Decision(restore=restore, from_step=from_step, reason=reason)


def newest_whole(held: Iterable[Holding]) -> tuple[int, Cut] | None:
    """The newest step whose state these hold together, and how it is cut; None if there is none."""
    return newest_key(parts_of(held), {})


def parts_of(held: Iterable[Holding]) -> Parts:
    """Which parts of the state at each step are held, for each way in which it is cut."""
    parts: Parts = {}
    for step, one in held:
        parts.setdefault((step, one.cut), set()).add(one.part)
    return parts


def newest_key(live: Parts, stored: Parts) -> tuple[int, Cut] | None:
    """The newest step whose state the living and the vaults hold together, and how it is cut.

    Of several cuts the one that takes least from vaults.
    """
    whole = []
    for step, cut in live.keys() | stored.keys():
        alive = live.get((step, cut), set())
        if is_whole(cut, found := alive | stored.get((step, cut), set())):
            whole.append((step, len(alive) - len(found), cut))
    newest = max(whole, default=None)
    return None if newest is None else (newest[0], newest[2])


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
        case _:
            assert_never(restore)


def slots_of(restore: Restore) -> tuple[VaultSlot, ...]:
    """What is read from vaults."""
    return restore.slots if isinstance(restore, PeerState) else ()


def slot_label(slot: VaultSlot) -> str:
    """A slot in words, by which it is remembered if it cannot be read."""
    return (
        f"the slot of rank {slot.held.rank} of generation {slot.generation} at step {slot.step} "
        f"in the vault of {slot.vault}"
    )


def _newest_peers(
    members: Sequence[Member], live: Parts, slots: Sequence[VaultSlot], stored: Parts
) -> PeerState | None:
    newest = newest_key(live, stored)
    if newest is None:
        return None
    step, cut = newest
    ranks = (m.rank for m in members if m.at_step == step and m.held.cut == cut)
    missing = stored.get(newest, set()) - live.get(newest, set())
    there = [slot for slot in slots if (slot.step, slot.held.cut) == newest] if missing else []
    near = {m.node for m in members if m.at_step != step} or {m.node for m in members}
    return PeerState(
        step=step, source=min(ranks, default=None), slots=_one_each(missing, there, near)
    )


def _one_each(
    missing: Collection[Part], slots: Sequence[VaultSlot], near: Collection[str]
) -> tuple[VaultSlot, ...]:
    """A slot for each of these parts, on one of the nodes `near` if there is one there."""
    chosen: dict[Part, VaultSlot] = {}
    for slot in slots:
        part = slot.held.part
        if part not in missing:
            continue
        before = chosen.setdefault(part, slot)
        if slot.vault in near and before.vault not in near:
            chosen[part] = slot
    return tuple(chosen[part] for part in sorted(chosen))


def _source_in_words(members: Sequence[Member], peers: PeerState) -> str:
    sharded = any(m.held.cut != (1, 1) for m in members if m.at_step == peers.step)
    live = "of the live ranks" if sharded else f"of rank {peers.source}"
    if not peers.slots:
        return live
    stored = _slots_in_words(peers.slots)
    if peers.source is None:
        return f"in vaults: {stored}"
    return f"{live} and {stored}"


def _slots_in_words(slots: Sequence[VaultSlot]) -> str:
    vaults = sorted({slot.vault for slot in slots})
    if len(slots) > MAX_NAMES:
        more = f" and {len(vaults) - MAX_NAMES} more" if len(vaults) > MAX_NAMES else ""
        there = f"vault{'s' if len(vaults) > 1 else ''} of {', '.join(vaults[:MAX_NAMES])}{more}"
        return f"{len(slots)} parts from the {there}"
    return ", ".join(
        f"{_part_name(slot.held.cut, slot.held.part)} from the vault of {slot.vault}"
        for slot in slots
    )


def _part_name(cut: Cut, part: Part) -> str:
    (tp, shard_size), (tensor, shard) = cut, part
    names = [f"shard {shard} of {shard_size}"] if shard_size > 1 else []
    names += [f"tensor part {tensor} of {tp}"] if tp > 1 else []
    return " of ".join(names) or "all of it"


def _what_is_lost(live: Parts, stored: Parts, from_step: int, holders: str) -> str:
    """The first part that is missing of the newest state, if that is newer; else nothing."""
    step, (tp, shard_size) = newest = max(live.keys() | stored.keys(), default=(0, (1, 1)))
    found = live.get(newest, set()) | stored.get(newest, set())
    if step <= from_step or is_whole((tp, shard_size), found):
        return ""
    every = ((tensor, shard) for tensor in range(tp) for shard in range(shard_size))
    missing = next(part for part in every if part not in found)
    return f", as {holders} {_part_name((tp, shard_size), missing)} at step {step}"
