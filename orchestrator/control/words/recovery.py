"""Where a new generation gets its state from: a pure function of who holds what.

State that is cut counts only whole: for every part of it some member, or a slot of a vault, has to
hold that part at the very same step. A part of another step is no help, since there is no way to
roll it forward.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import assert_never

from remesh.orchestrator.control.words.records import (
    CheckpointState,
    FreshState,
    Member,
    PeerState,
    Restore,
    VaultSlot,
)
from remesh.parallel.plan.cut import Cut, Held, Part

MAX_NAMES = 3  # in a reason
CHECKPOINT = "checkpoint"  # how the label of one begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`restore` brings every member to the state at `from_step`; `reason` ends a sentence."""

    restore: Restore
    from_step: int
    reason: str


StepHeld = tuple[int, Held]  # the step whose state it is, and what of it
PartsFound = dict[tuple[int, Cut], set[Part]]


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


def newest_whole(held: Iterable[StepHeld]) -> tuple[int, Cut] | None:
    """The newest step whose state these hold together, and how it is cut; None if there is none."""
    return newest_key(parts_of(held), {})


def parts_of(held: Iterable[StepHeld]) -> PartsFound:
    """Which parts of the state at each step are held, for each way in which it is cut."""
    parts: PartsFound = {}
    for step, one in held:
        parts.setdefault((step, one.cut), set()).update(one.parts)
    return parts


def newest_key(live: PartsFound, stored: PartsFound) -> tuple[int, Cut] | None:
    """The newest step whose state the living and the vaults hold together, and how it is cut.

    Of several cuts the one that takes least from vaults.
    """
    whole = []
    for step, cut in live.keys() | stored.keys():
        alive = live.get((step, cut), set())
        if cut.is_whole(found := alive | stored.get((step, cut), set())):
            whole.append((step, len(alive) - len(found), astuple(cut), cut))
    newest = max(whole, key=lambda found: found[:3], default=None)
    return None if newest is None else (newest[0], newest[3])


def source_label(restore: Restore) -> str:
    """A source of state in words, by which its failures are remembered."""
    match restore:
        case FreshState():
            return "fresh parameters"
        case PeerState(step=step):
            return f"the peers' state at step {step}"
        case CheckpointState(name=name):
            return f"{CHECKPOINT} {name}"
        case _:
            assert_never(restore)


def is_of_checkpoint(label: str) -> bool:
    """Whether this source outlives whoever has written it."""
    return label.startswith(f"{CHECKPOINT} ")


def slots_of(restore: Restore) -> tuple[VaultSlot, ...]:
    """What is read from vaults."""
    return restore.slots if isinstance(restore, PeerState) else ()


def slot_label(slot: VaultSlot) -> str:
    """A slot in words, by which it is remembered if it cannot be read."""
    return (
        f"the slot with {slot.held} of generation {slot.generation} at step {slot.step} "
        f"in the vault of {slot.vault}"
    )


def _newest_peers(
    members: Sequence[Member], live: PartsFound, slots: Sequence[VaultSlot], stored: PartsFound
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
        for part in slot.held.parts:
            if part not in missing:
                continue
            before = chosen.setdefault(part, slot)
            if slot.vault in near and before.vault not in near:
                chosen[part] = slot
    return tuple(dict.fromkeys(chosen[part] for part in sorted(chosen)))


def _source_in_words(members: Sequence[Member], peers: PeerState) -> str:
    sharded = any(not m.held.cut.is_one for m in members if m.at_step == peers.step)
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
    return ", ".join(f"{slot.held} from the vault of {slot.vault}" for slot in slots)


def _what_is_lost(live: PartsFound, stored: PartsFound, from_step: int, holders: str) -> str:
    """The first part that is missing of the newest state, if that is newer; else nothing."""
    known = live.keys() | stored.keys()
    newest = max(known, key=lambda key: (key[0], astuple(key[1])), default=(0, Cut()))
    step, cut = newest
    found = live.get(newest, set()) | stored.get(newest, set())
    if step <= from_step or cut.is_whole(found):
        return ""
    missing = next(part for part in cut.parts() if part not in found)
    return f", as {holders} {cut.say(missing)} at step {step}"
