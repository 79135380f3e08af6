"""What a rank decides about its snapshots: whether one is due, where it goes, what is safe. Pure.

All ranks take snapshots of the same steps, those in whose vote each of them was ready: only then is
the newest step that all have sealed one that all have. A rank is ready if it has a slot that it may
write over, which is none at or above the stable step, and if a snapshot is due.

**A rank that lacks a step says so.** The least of what the ranks have sealed is a step that all
have, as long as each has all that were taken. A rank whose vault died, or whose snapshot turned out
to be none, lacks some that others have. So it votes ANEW once, and with that vote all forget what
is newer than the stable step: on their way or sealed, it counts no more. What lost: that the others
see the least step fall, which they do not see before anything was stable, and see again at every
vote until the rank has a snapshot.

**Nothing is given up for good.** Without room, with a vault that is gone or says nothing, a rank
asks again after a pause that doubles; at once if there is another vault.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from remesh.orchestrator.vault import vault_words as vw
from remesh.orchestrator.vault.rank_words import (
    CloseLine,
    MapSlot,
    OpenLine,
    RankDo,
    SayPaused,
    SayVault,
    VaultWays,
)
from remesh.orchestrator.vault.snapshot_pace import Pace
from remesh.parallel.plan.step_result import ANEW, NEVER

NOTHING = -1  # no step is safe, or stable
PAUSE_STEPS = 8
MOST_PAUSES = 6  # that double
MOST_SPOILT = 3  # one after the other, before another lease is tried


class _Use(Enum):
    FREE = 0
    SENT = 1  # copied, and the vault has been told
    KEPT = 2  # sealed here, and not at the buddy yet
    SAFE = 3


@dataclass(slots=True)
class _RankSlot:
    """A slot as the rank knows it. One that `counts` not is of before the rank began anew."""

    use: _Use = _Use.FREE
    step: int = NOTHING
    since_s: float = 0.0
    counts: bool = True


class RankSlots:
    """The snapshots of one rank in one generation. `limit_s` is how long its vault may be silent.

    A rank that takes no part is one of several that hold the same part of the state.
    """

    def __init__(self, pace: Pace, limit_s: float = float("inf")) -> None:
        self.pace = pace
        self.limit_s = limit_s
        self.claim: vw.LeaseSlots | None = None
        self.ways: VaultWays | None = None
        self.safe = self.stable = NOTHING
        self.slots: list[_RankSlot] = []
        self.has_buddy = False
        self._is_on = self._is_over = False
        self._has_line = self._has_lease = self._is_new = self._said_stable = False
        self._to_map: list[str] = []
        self._asked_s = 0.0
        self._pause = self._tries = self._spoilt = 0
        self._said: set[str] = set()

    def enter(
        self, ways: VaultWays | None, claim: vw.LeaseSlots | None, from_step: int, now_s: float
    ) -> list[RankDo]:
        """Begin a generation; without a claim to take no part, without ways without vaults."""
        done = self._let_go()
        self._is_on, self._is_over, self._is_new = ways is not None, False, False
        self.claim, self.ways = claim, ways
        self.stable = NOTHING
        self._tries = self._spoilt = 0
        self._said.clear()
        self.pace.begin(from_step)
        return [*done, *self._lease(now_s)]

    def leave(self) -> list[RankDo]:
        """What was copied whole is the vault's to seal."""
        self._is_on, self.claim, self.ways = False, None, None
        return self._let_go()

    def heard(self, word: vw.ToRank) -> list[RankDo]:
        """What the vault says; nothing that it said before the line was closed."""
        if not self._has_line:
            return []
        match word:
            case vw.SlotsLeased():
                self._has_lease, self._to_map = True, list(word.paths)
            case vw.SlotSealed():
                self._sealed(word.slot)
            case vw.SlotSafe():
                self._note_safe(word.slot)
            case vw.LeftAlone():
                self._left_alone()
            case vw.SlotSpoilt():
                return self._note_spoilt(word)
            case vw.Refused():
                return self._give_up(word.error, say=True)
            case vw.GenerationOver():
                self._is_over = True
                return self._let_go()
            case _:
                assert_never(word)
        return []

    def lost(self, why: str) -> list[RankDo]:
        """The line to the vault has ended, or a slot cannot be mapped.

        A vault that dies is news of its own: it is said here if the next one cannot be had either.
        """
        return self._give_up(why, say=self._tries > 0) if self._has_line else []

    def mapped(self) -> None:
        """One slot more is there to be written to."""
        if self._has_line:
            self.slots.append(_RankSlot())

    def move(self, ways: VaultWays, now_s: float) -> list[RankDo]:
        """There are other vaults. What is where it can stay stays."""
        if not self._is_on or ways == self.ways:
            return []
        before, self.ways = self.ways, ways
        had_all = self._has_line and self.has_buddy and before is not None
        if self.claim is None or self._is_over or had_all:
            return []
        self._tries = 0
        return [*self._let_go(), *self._lease(now_s)]

    def look(self, now_s: float) -> list[RankDo]:
        """Once a step, after what the vault has said was heard."""
        if self._has_line and self._is_silent(now_s):
            return self._give_up(f"the vault has not answered for {self.limit_s:.0f} s", say=True)
        if self._to_map:  # one a step: mapping it takes a while
            return [MapSlot(path=self._to_map.pop(0))]
        if self._pause:
            self._pause -= 1
            return [] if self._pause else self._lease(now_s)
        return []

    def ballot(self, step: int, now_s: float) -> tuple[int | None, bool]:
        """The newest step that is safe, None if there are no vaults; whether to take this one."""
        if not self._is_on:
            return None, False
        if self.claim is None:
            return NEVER, True
        self.pace.mark(now_s, busy=any(s.use in (_Use.SENT, _Use.KEPT) for s in self.slots))
        if self._is_new:
            return ANEW, False
        return self.safe, self.free_slot() is not None and self.pace.is_due(step)

    def voted(self, step: int) -> list[RankDo]:
        """What the least ballot of all ranks says: all have a safe snapshot of `step`.

        The vault hears of one that lies in the present slots. If the rank has begun anew since it
        voted, it lies among those of before, which the vault would give up.
        """
        if step == ANEW:
            self._begin_anew()
        elif self.stable < step < NEVER:
            self.stable = step
            if self._has_line and self.safe >= step and not self._said_stable:
                self._said_stable = True
                return [SayVault(word=vw.NowStable())]
        return []

    def free_slot(self) -> int | None:
        """One that may be written over: it has nothing at or above the stable step."""
        for number, slot in enumerate(self.slots):
            old = slot.use is _Use.SAFE and slot.step < self.stable
            if slot.use is _Use.FREE or old:
                return number
        return None

    def copied(self, number: int, step: int, copy_s: float, now_s: float) -> list[RankDo]:
        """The state after `step` was copied whole into this slot, which took so long."""
        self.slots[number] = _RankSlot(use=_Use.SENT, step=step, since_s=now_s)
        self.pace.note(step, copy_s)
        return [SayVault(word=vw.SealSlot(slot=number))]

    def _lease(self, now_s: float) -> list[RankDo]:
        """Ask the own vault for slots, if there is one."""
        if self.claim is None or self.ways is None or not self.ways.own:
            return []
        self._has_line, self._asked_s, self._pause = True, now_s, 0
        self.has_buddy = bool(self.ways.buddy)
        first = replace(self.claim, buddy=self.ways.buddy)
        return [OpenLine(address=self.ways.own, first=first)]

    def _let_go(self) -> list[RankDo]:
        had_line = self._has_line
        self._is_new |= self._has_lease
        self._has_line = self._has_lease = self._said_stable = self.has_buddy = False
        self.slots, self._to_map, self._pause = [], [], 0
        self.safe = NOTHING
        return [CloseLine()] if had_line else []

    def _give_up(self, why: str, *, say: bool) -> list[RankDo]:
        """No snapshots of this rank, and so of any, until it is tried again."""
        done = self._let_go()
        self._pause = PAUSE_STEPS << min(self._tries, MOST_PAUSES)
        self._tries += 1
        return [*done, *self._say_paused(why)] if say else done

    def _say_paused(self, why: str) -> list[RankDo]:
        if why in self._said:
            return []
        self._said.add(why)
        return [SayPaused(reason=why)]

    def _is_silent(self, now_s: float) -> bool:
        waits = [slot.since_s for slot in self.slots if slot.use is _Use.SENT]
        if not self._has_lease:
            waits.append(self._asked_s)
        return bool(waits) and now_s - min(waits) > self.limit_s

    def _sealed(self, number: int) -> None:
        slot = self._slot(number)
        if slot is not None and slot.use is _Use.SENT:
            slot.use = _Use.KEPT
            if not self.has_buddy:
                self._note_safe(number)

    def _note_safe(self, number: int) -> None:
        slot = self._slot(number)
        if slot is None or slot.use is not _Use.KEPT:
            return
        if slot.counts:
            slot.use = _Use.SAFE
            self.safe = max(self.safe, slot.step)
            self._tries = self._spoilt = 0
        else:
            slot.use = _Use.FREE

    def _left_alone(self) -> None:
        self.has_buddy = False
        for number in range(len(self.slots)):
            self._note_safe(number)

    def _note_spoilt(self, word: vw.SlotSpoilt) -> list[RankDo]:
        """The next one is tried, and after some of them another lease."""
        slot = self._slot(word.slot)
        if slot is None or slot.use is not _Use.SENT:
            return []
        why = f"a snapshot could not be sealed: {word.error}"
        slot.use, self._is_new = _Use.FREE, True
        self._spoilt += 1
        if self._spoilt >= MOST_SPOILT:
            return self._give_up(why, say=True)
        return self._say_paused(why)

    def _begin_anew(self) -> None:
        """A rank lacks what is newer than the stable step: with all others it counts no more."""
        self._is_new = False
        self.safe = NOTHING
        for slot in self.slots:
            if slot.use is _Use.SAFE and slot.step > self.stable:
                slot.use = _Use.FREE
            elif slot.use in (_Use.SENT, _Use.KEPT):
                slot.counts = False

    def _slot(self, number: int) -> _RankSlot | None:
        return self.slots[number] if 0 <= number < len(self.slots) else None
