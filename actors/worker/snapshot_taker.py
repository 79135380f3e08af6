"""A rank's snapshots: copied at a step boundary into slots of its node's vault.

The copy is all that training waits for. The vault hashes it and sends it to the buddy while the
next step computes, in its own process: a thread of this one would hold the interpreter's lock for
each hash, and every operation of the trainer would wait for it. The worker has no thread for it
either: what the vault says is looked at once a step. What is decided about it, its machine decides
(orchestrator/vault/rank_slots.py).
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never, get_args

import torch
from torch import Tensor

from remesh.actors.orders import FormOrder, VaultOrder
from remesh.actors.vault.line_opening import LineOpening
from remesh.actors.vault.replica import SLOWEST_BYTES_S
from remesh.actors.vault.slot_memory import SlotMemory
from remesh.actors.vault.wire import Line, VaultError
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.vault import rank_words as rw
from remesh.orchestrator.vault.rank_slots import RankSlots
from remesh.orchestrator.vault.snapshot_pace import Every, Pace
from remesh.orchestrator.vault.vault_words import LeaseSlots, SlotState, ToRank
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader, lay_out
from remesh.parallel.state.root_manifest import CheckpointRef
from remesh.parallel.state.shards import copy_of

LAST_STEP = 2**40  # no step has more digits


class SnapshotTaker:
    """For the trainer thread. Between `enter` and `leave` there may be slots, or not yet, or none.

    `every` is a number of steps, or "auto"; `clock` tells seconds. `paused` is told in which
    generation there are no snapshots for a while, and why.
    """

    def __init__(
        self,
        *,
        every: Every,
        timers: Timers,
        clock: Callable[[], float] = time.perf_counter,
        paused: Callable[[int, str], None] = lambda _generation, _why: None,
    ) -> None:
        self._machine = RankSlots(Pace(every))
        self._timers = timers
        self._clock = clock
        self._paused = paused
        self._generation = -1
        self._token = ""
        self._opening: LineOpening | None = None
        self._line: Line | None = None
        self._layout: _SlotLayout | None = None
        self._slots: list[_MappedSlot] = []
        self._moved: tuple[int, VaultOrder] | None = None

    def enter(self, order: FormOrder, mesh: Mesh, state: ShardState) -> None:
        """Begin a generation. Of the ranks that hold the same part of the state one takes part."""
        self._generation = order.generation
        claim, vaults = None, order.vaults
        if vaults is not None and mesh.replica.rank == 0:
            self._layout = _SlotLayout.of(state, order.generation)
            size_bytes = self._layout.header.size_bytes
            claim = LeaseSlots(
                generation=order.generation,
                held=state.held,
                size_bytes=size_bytes,
                from_step=order.from_step,
                buddy="",
            )
            self._machine.limit_s = 2 * self._timers.form_s + size_bytes / SLOWEST_BYTES_S
        self._token = vaults.token if vaults else ""
        ways = _ways(vaults) if vaults else None
        self._do(self._machine.enter(ways, claim, order.from_step, self._clock()))

    def move(self, generation: int, vaults: VaultOrder) -> None:
        """There are other vaults than when this generation began. From any thread."""
        self._moved = (generation, vaults)

    def leave(self) -> None:
        """Touch no slot from now on. What was copied whole is the vault's to seal."""
        self._do(self._machine.leave())
        self._layout = None

    def ballot(self, step: int) -> tuple[int | None, bool]:
        """The newest step that is safe, None if there are no vaults; whether to take this one."""
        self._listen()
        self._follow()
        self._do(self._machine.look(self._clock()))
        return self._machine.ballot(step, self._clock())

    def take(self, step: int) -> None:
        """Copy the state as it is after this step. All ranks were ready for it.

        Cost: one copy of what the rank holds, into memory that is there.
        """
        number = self._machine.free_slot()
        if number is None or self._layout is None:
            return
        started_s = self._clock()
        slot = self._slots[number]
        slot.memory.state, slot.memory.step = SlotState.WRITING, step
        slot.memory.shard[: len(self._layout.start)] = self._layout.start
        for copy in slot.copies:
            copy()
        slot.memory.state = SlotState.COPIED
        now_s = self._clock()
        self._do(self._machine.copied(number, step, now_s - started_s, now_s))

    def stable(self, step: int) -> None:
        """What the least ballot of all ranks says of their safe snapshots."""
        self._do(self._machine.voted(step))

    def _listen(self) -> None:
        """Hear all that the vault has said, and whether it is gone."""
        try:
            if self._opening and self._line is None:
                self._line = self._opening.line()
            while self._line and (message := self._line.poll()):
                if not isinstance(message, get_args(ToRank)):
                    raise VaultError(f"the vault says {message}, which is no word to a worker")
                self._do(self._machine.heard(message))
        except (OSError, EOFError) as error:
            self._lose(f"the vault is gone: {error!r}")

    def _follow(self) -> None:
        moved = self._moved
        if moved and moved[0] == self._generation:
            self._moved = None
            self._do(self._machine.move(_ways(moved[1]), self._clock()))

    def _do(self, dos: Iterable[rw.RankDo]) -> None:
        for do in dos:
            match do:
                case rw.OpenLine():
                    limit_s = self._timers.form_s
                    self._opening = LineOpening(do.address, self._token, limit_s, do.first)
                    self._opening.start()
                case rw.CloseLine():
                    self._close()
                case rw.MapSlot():
                    self._map(Path(do.path))
                case rw.SayVault():
                    self._say(do)
                case rw.SayPaused():
                    text = f"no snapshots in memory for now: {do.reason}"
                    logging.getLogger(__name__).warning(text)
                    self._paused(self._generation, do.reason)
                case _:
                    assert_never(do)

    def _map(self, path: Path) -> None:
        assert self._layout is not None
        try:
            memory = SlotMemory.open(path)
        except OSError as error:
            self._lose(f"a slot of the vault cannot be mapped: {error}")
        else:
            self._slots.append(_MappedSlot(memory, self._layout.copies(memory)))
            self._machine.mapped()

    def _say(self, said: rw.SayVault) -> None:
        try:
            if self._line:
                self._line.send(said.word)
        except OSError as error:
            self._lose(f"the vault is gone: {error}")

    def _lose(self, why: str) -> None:
        self._do(self._machine.lost(why))

    def _close(self) -> None:
        """The slots first: once the line ends, the vault takes them for left."""
        memories = [slot.memory for slot in self._slots]
        self._slots = []
        for memory in memories:
            memory.close()
        if self._opening:
            self._opening.leave()
        self._opening = self._line = None


@dataclass(slots=True)
class _MappedSlot:
    """A slot, and what copies the state into it, run by run."""

    memory: SlotMemory
    copies: list[Callable[[], object]]


def _ways(vaults: VaultOrder) -> rw.VaultWays:
    return rw.VaultWays(own=vaults.own, buddy=vaults.buddy)


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

    def copies(self, memory: SlotMemory) -> list[Callable[[], object]]:
        """Those of the runs of fragments that follow one another in the state and in the slot."""
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
            copy_of(
                file_B[start:end].view(first.dtype),
                first.as_strided(((end - start) // first.itemsize,), (1,)),
            )
            for first, start, end in runs
        ]


def _is_one_memory(first: Tensor, second: Tensor) -> bool:
    start, other = (tensor.untyped_storage().data_ptr() for tensor in (first, second))
    return start == other and first.dtype == second.dtype
