"""A rank's snapshots: copied at a step boundary into slots of its node's vault.

The copy is all that training waits for. The vault hashes it and sends it to the buddy while the
next step computes, in its own process: a thread of this one would hold the interpreter's lock for
each hash, and every operation of the trainer would wait for it. The worker has no thread for it
either: what the vault says is looked at once a step.

All ranks take snapshots of the same steps, those in whose vote each of them was ready: only then is
the newest step that all have sealed one that all have. A rank is ready if it has a slot that it may
write over, which is none at or above the stable step, and if a snapshot is due.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import torch
from torch import Tensor

from remesh.actors.orders import FormOrder, VaultOrder
from remesh.actors.vault.line_opening import LineOpening
from remesh.actors.vault.messages import (
    LeaseSlots,
    LeftAlone,
    Message,
    NowStable,
    Refused,
    SealSlot,
    SlotSafe,
    SlotSealed,
    SlotsLeased,
    SlotSpoilt,
)
from remesh.actors.vault.slot_memory import SlotMemory, SlotState
from remesh.actors.vault.wire import Line, VaultError
from remesh.actors.worker.snapshot_pace import Every, Pace
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader, lay_out
from remesh.parallel.state.root_manifest import CheckpointRef
from remesh.parallel.step.vote import NEVER

LAST_STEP = 2**40  # no step has more digits


class _Use(Enum):
    FREE = 0
    SENT = 1
    SEALED = 2


@dataclass(slots=True)
class _OwnSlot:
    """A slot as the worker knows it. `step` is that of its snapshot."""

    memory: SlotMemory
    copies: list[tuple[Tensor, Tensor]]
    use: _Use = _Use.FREE
    step: int = -1


class SnapshotTaker:
    """For the trainer thread. Between `enter` and `leave` there may be slots, or not yet, or none.

    `every` is a number of steps, or "auto"; `clock` tells seconds.
    """

    def __init__(
        self, *, every: Every, timers: Timers, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._pace = Pace(every)
        self._timers = timers
        self._clock = clock
        self._opening: LineOpening | None = None
        self._line: Line | None = None
        self._layout: _SlotLayout | None = None
        self._slots: list[_OwnSlot] = []
        self._paths: list[Path] = []
        self._claim: LeaseSlots | None = None
        self._vaults: VaultOrder | None = None
        self._moved: tuple[int, VaultOrder] | None = None
        self._is_on = False
        self._takes_part = False
        self._stable_step = -1
        self._safe_step = -1
        self._has_buddy = False

    def enter(self, order: FormOrder, mesh: Mesh, state: ShardState) -> None:
        """Begin a generation. Of the ranks that hold the same part of the state one takes part."""
        self.leave()
        self._is_on = order.vaults is not None
        self._takes_part = mesh.replica.rank == 0
        self._stable_step = -1
        self._pace.begin(order.from_step)
        if order.vaults is not None and self._takes_part:
            self._layout = _SlotLayout.of(state, order.generation)
            self._claim = LeaseSlots(
                generation=order.generation,
                held=state.held,
                size_bytes=self._layout.header.size_bytes,
                from_step=order.from_step,
                buddy="",
            )
            self._lease(self._claim, order.vaults)

    def move(self, generation: int, vaults: VaultOrder) -> None:
        """There are other vaults than when this generation began. From any thread."""
        self._moved = (generation, vaults)

    def leave(self) -> None:
        """Touch no slot from now on. What was copied whole is the vault's to seal."""
        self._let_go()
        self._layout = None
        self._is_on = self._takes_part = self._has_buddy = False

    def ballot(self, step: int) -> tuple[int | None, bool]:
        """The newest step that is safe, None if there are no vaults; whether to take this one."""
        if not self._is_on:
            return None, False
        if not self._takes_part:
            return NEVER, True
        self._listen()
        self._follow()
        busy = any(slot.use is _Use.SENT for slot in self._slots)
        self._pace.mark(self._clock(), busy=busy)
        return self._safe_step, self._free_slot() is not None and self._pace.is_due(step)

    def take(self, step: int) -> None:
        """Copy the state as it is after this step. All ranks were ready for it.

        Cost: one copy of what the rank holds, into memory that is there.
        """
        slot = self._free_slot()
        if not self._takes_part or slot is None or self._line is None or self._layout is None:
            return
        started_s = self._clock()
        slot.memory.state, slot.memory.step = SlotState.WRITING, step
        slot.memory.shard[: len(self._layout.start)] = self._layout.start
        for target, source in slot.copies:
            target.copy_(source)
        slot.memory.state = SlotState.COPIED
        slot.use, slot.step = _Use.SENT, step
        self._pace.note(step, self._clock() - started_s)
        self._say(SealSlot(slot=self._slots.index(slot)))

    def stable(self, step: int) -> None:
        """All ranks have a safe snapshot of this step: older ones may be written over."""
        if step < self._stable_step:
            # A rank begins anew, with other vaults: what was stable is all that is sure to be left.
            for slot in self._slots:
                if slot.use is _Use.SEALED and slot.step > self._stable_step:
                    slot.use = _Use.FREE
            return
        if self._stable_step < 0 <= step < NEVER:
            self._say(NowStable())
        if step < NEVER:
            self._stable_step = step

    def _lease(self, claim: LeaseSlots, vaults: VaultOrder) -> None:
        """Ask the own vault for slots, if there is one; `_listen` hears the answer."""
        self._let_go()
        self._vaults = vaults
        if not vaults.own:
            return
        self._has_buddy = bool(vaults.buddy)
        first = replace(claim, buddy=vaults.buddy)
        self._opening = LineOpening(vaults.own, vaults.token, self._timers.form_s, first)
        self._opening.start()

    def _follow(self) -> None:
        """Go to the vaults that there are now, if one of those before is gone."""
        lacks = self._line is None or not self._has_buddy
        claim = self._claim
        if claim and lacks and self._moved and self._moved[0] == claim.generation:
            vaults = self._moved[1]
            self._moved = None
            if vaults != self._vaults:
                self._lease(claim, vaults)

    def _let_go(self) -> None:
        if self._opening:
            self._opening.leave()
        self._opening = None
        self._line, self._slots, self._paths = None, [], []
        self._has_buddy = False
        self._safe_step = -1

    def _free_slot(self) -> _OwnSlot | None:
        for slot in self._slots:
            if slot.use is _Use.FREE or (slot.use is _Use.SEALED and slot.step < self._stable_step):
                return slot
        return None

    def _listen(self) -> None:
        try:
            if self._opening and self._line is None:
                self._line = self._opening.line()
            while self._line and (message := self._line.poll()):
                self._heed(message)
            if self._paths and self._layout:  # one a step: mapping it takes a while
                memory = SlotMemory.open(self._paths.pop())
                self._slots.append(_OwnSlot(memory, self._layout.copies(memory)))
        except (OSError, EOFError) as error:
            self._give_up(f"the vault is gone: {error!r}")

    def _heed(self, message: Message) -> None:
        match message:
            case SlotsLeased(paths=paths):
                self._paths = [Path(path) for path in reversed(paths)]
            case SlotSealed(slot=number):
                if not self._has_buddy:
                    self._note_safe(number)
            case SlotSafe(slot=number):
                self._note_safe(number)
            case LeftAlone(error=error):
                self._say_so(f"its buddy takes no snapshots, they are kept here only: {error}")
                self._has_buddy = False
                for number, slot in enumerate(self._slots):
                    if slot.memory.state is SlotState.SEALED and slot.use is _Use.SENT:
                        self._note_safe(number)
            case SlotSpoilt(slot=number, error=error):
                # Others have theirs of this step: their least would be a step that is not whole.
                self._give_up(f"the one in slot {number} could not be sealed: {error}")
            case Refused(error=error):
                self._give_up(error)
            case _:
                raise VaultError(f"the vault says {message}, which is no word to a worker")

    def _note_safe(self, number: int) -> None:
        slot = self._slots[number]
        slot.use = _Use.SEALED
        self._safe_step = max(self._safe_step, slot.step)

    def _say(self, message: Message) -> None:
        try:
            if self._line:
                self._line.send(message)
        except OSError as error:
            self._give_up(f"the vault is gone: {error}")

    def _give_up(self, why: str) -> None:
        """No snapshots of this rank, and so of any, for the rest of the generation."""
        self._say_so(f"no snapshots in memory: {why}")
        self._let_go()

    @staticmethod
    def _say_so(text: str) -> None:
        logging.getLogger(__name__).warning(text)


@dataclass(frozen=True, slots=True)
class _SlotLayout:
    """How a rank's part of the state lies in a slot: as it lies in memory, in long runs."""

    start: bytes
    header: ShardHeader
    views: dict[Fragment, Tensor]

    @classmethod
    def of(cls, state: ShardState, generation: int) -> "_SlotLayout":
        views = dict(state.fragments())
        # Large elements first keep all of them aligned.
        order = sorted(views, key=lambda one: (-views[one].itemsize, views[one].data_ptr()))
        start, header = lay_out(CheckpointRef(step=LAST_STEP, generation=generation), order)
        return cls(start, header, views)

    def copies(self, memory: SlotMemory) -> list[tuple[Tensor, Tensor]]:
        """(target, source) of each run of fragments that follow one another in both."""
        file_B = torch.frombuffer(memory.shard, dtype=torch.uint8)
        runs: list[tuple[Tensor, int, int]] = []
        for part in self.header.parts:
            view = self.views[part.fragment]
            if runs:
                first, start, end = runs[-1]
                after = first.data_ptr() + end - start
                if after == view.data_ptr() and _is_one_memory(first, view):
                    runs[-1] = (first, start, part.end)
                    continue
            runs.append((view, part.start, part.end))
        return [
            (
                file_B[start:end].view(first.dtype),
                first.as_strided(((end - start) // first.itemsize,), (1,)),
            )
            for first, start, end in runs
        ]


def _is_one_memory(first: Tensor, second: Tensor) -> bool:
    start, other = (tensor.untyped_storage().data_ptr() for tensor in (first, second))
    return start == other and first.dtype == second.dtype
