"""A simulated rank's snapshots: the machine of a rank, and its line to the vault of its node."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, assert_never

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.events import SnapshotsPaused
from remesh.orchestrator.sim.shells.vault import SimVault
from remesh.orchestrator.sim.shells.vault_copies import SimCopies
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.vault import rank_words as rw
from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault import vault_words as vw
from remesh.orchestrator.vault.rank_slots import RankSlots
from remesh.orchestrator.vault.snapshot_pace import Pace
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.step_result import NEVER

LEAST_SLOTS = 2


class Owner(Protocol):
    """The process of a rank, which keeps its `pace` in every mesh.

    `act` acts at once, later if it is frozen by then, never if dead.
    """

    name: str
    node: str
    alive: bool
    pace: Pace

    def act(self, action: Callable[[], None]) -> None: ...


@dataclass(slots=True, eq=False)
class SimLine:
    """From a rank to the vault of its node: the tenant of a lease there.

    `mapped` are the slots that the rank has, by number. What is said arrives in order.
    """

    world: World
    vault: SimVault
    owner: Owner
    heard: Callable[["SimLine", vw.ToRank], None]
    lost: Callable[["SimLine"], None]
    lease: int = 0
    is_open: bool = True
    mapped: list[int] = field(default_factory=list)
    copies: SimCopies | None = None
    until_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def open(self, first: vw.LeaseSlots) -> None:
        self._to_vault(lambda: self._claim(first))

    def say(self, word: sw.ShelfWord) -> None:
        self._to_vault(lambda: self.vault.say(word))

    def close(self) -> None:
        """Let go of the slots, and hang up. By a death too."""
        self.is_open = False
        self._to_vault(lambda: self.vault.say(sw.HungUp(lease=self.lease)))
        self.world.agenda.after(self.world.timers.end_s, self._send_no_more)

    def may_write(self) -> bool:
        return self.is_open and self.owner.alive

    def vault_died(self) -> None:
        self._to_rank(lambda: self.lost(self))
        if self.copies is not None:
            self.copies.end()

    def hear(self, do: sw.ForTenant) -> None:
        match do:
            case sw.Grant():
                paths = tuple(str(slot) for slot in do.slots)
                self._tell(vw.SlotsLeased(paths=paths))
                self._open_copies(len(do.slots))
            case sw.Refuse():
                self._tell(vw.Refused(error=do.reason) if do.reason else vw.GenerationOver())
            case sw.TellRank():
                self._tell(do.word)
            case sw.SendCopy() | sw.SendStable() | sw.EndCopies():
                if self.copies is not None:
                    _hand_over(self.copies, do)
            case _:
                raise AssertionError(f"{do} is nothing for a worker")

    def _claim(self, first: vw.LeaseSlots) -> None:
        claim = sw.Claim(
            generation=first.generation,
            held=first.held,
            size_bytes=first.size_bytes,
            from_step=first.from_step,
            least_slots=LEAST_SLOTS,
            copied=bool(first.buddy),
        )
        if first.buddy:
            buddy = self.world.vault_at(first.buddy)
            self.copies = SimCopies(self.world, self.vault, 0, buddy)
        self.lease = self.vault.claim(claim, self)

    def _open_copies(self, num_slots: int) -> None:
        claim = self.vault.shelf.leases[self.lease].claim
        if self.copies is not None:
            self.copies.lease = self.lease
            self.copies.open(replace(claim, guest=True, copied=False, least_slots=num_slots))

    def _send_no_more(self) -> None:
        self.vault.say(sw.CopiesRefused(lease=self.lease, error=""))

    def _tell(self, word: vw.ToRank) -> None:
        self._to_rank(lambda: self.heard(self, word))

    def _to_rank(self, action: Callable[[], None]) -> None:
        self._later(0, lambda: self.owner.act(lambda: action() if self.is_open else None))

    def _to_vault(self, action: Callable[[], None]) -> None:
        self._later(1, action)

    def _later(self, way: int, action: Callable[[], None]) -> None:
        now_s = self.world.agenda.now_s
        until_s = max(self.until_s[way], now_s + self.world.between(0.0002, 0.003))
        self.until_s[way] = until_s
        self.world.agenda.after(until_s - now_s, action)


@dataclass(slots=True, eq=False)
class SimSnapshots:
    """One rank's snapshots in one generation. `used` are all vaults that it had to do with."""

    world: World
    owner: Owner
    generation: int
    machine: RankSlots
    line: SimLine | None = None
    used: list[SimVault] = field(default_factory=list)

    @classmethod
    def begin(
        cls, world: World, owner: Owner, form: Form, ways: rw.VaultWays, held: Held | None
    ) -> "SimSnapshots":
        """In a mesh, of the part that is `held`; without it to take no part."""
        machine = RankSlots(owner.pace, 2 * world.timers.form_s)
        snapshots = cls(world, owner, form.generation, machine)
        claim = None
        if held is not None:
            claim = vw.LeaseSlots(
                generation=form.generation,
                held=held,
                size_bytes=1,
                from_step=form.from_step,
                buddy="",
            )
        snapshots._do(machine.enter(ways, claim, form.from_step, world.agenda.now_s))
        return snapshots

    def move(self, ways: rw.VaultWays) -> None:
        self._do(self.machine.move(ways, self.world.agenda.now_s))

    def ballot(self, step: int) -> tuple[int, bool]:
        now_s = self.world.agenda.now_s
        self._do(self.machine.look(now_s))
        safe, ready = self.machine.ballot(step, now_s)
        return NEVER if safe is None else safe, ready

    def voted(self, step: int) -> None:
        self._do(self.machine.voted(step))

    def take(self, step: int, value: int) -> None:
        """Copies the state; the vault goes on by itself, whatever happens to the worker."""
        number = self.machine.free_slot()
        if number is None or self.line is None:
            return
        slot = self.line.vault.slots.get(self.line.mapped[number])
        if slot is not None:  # else its vault is dead
            slot.word = vw.SlotWord(state=vw.SlotState.COPIED, step=step)
            slot.value, slot.rotten = value, False
        self._do(self.machine.copied(number, step, 0.001, self.world.agenda.now_s))

    def leave(self) -> None:
        self._do(self.machine.leave())

    def died(self) -> None:
        if self.line is not None:
            self.line.close()

    def _do(self, dos: Iterable[rw.RankDo]) -> None:
        for do in dos:
            match do:
                case rw.OpenLine():
                    self._open(do)
                case rw.CloseLine():
                    if self.line is not None:
                        self.line.close()
                    self.line = None
                case rw.MapSlot():
                    self._map(int(do.path))
                case rw.SayVault():
                    self._say(do)
                case rw.SayPaused():
                    event = SnapshotsPaused(
                        worker=self.owner.name, generation=self.generation, reason=do.reason
                    )
                    self.world.post(self.owner.node, event)
                case _:
                    assert_never(do)

    def _open(self, do: rw.OpenLine) -> None:
        vault, buddy = self.world.vault_at(do.address), self.world.vault_at(do.first.buddy)
        self.used += [one for one in (vault, buddy) if one is not None]
        if vault is None or not vault.alive:
            soon = partial(self.owner.act, partial(self._lose, "nobody is there"))
            self.world.agenda.after(self.world.between(0.0005, 0.01), soon)
            return
        self.line = SimLine(self.world, vault, self.owner, self._heard, self._lost)
        self.line.open(do.first)

    def _map(self, number: int) -> None:
        assert self.line is not None
        slot = self.line.vault.slots.get(number)
        if slot is None or not slot.offered:
            self._lose("its slot is not there")
            return
        slot.mapper = self.line
        self.line.mapped.append(number)
        self.machine.mapped()

    def _say(self, said: rw.SayVault) -> None:
        line = self.line
        if line is None:
            return
        match said.word:
            case vw.SealSlot(slot=number):
                slot = line.vault.slots.get(line.mapped[number])
                step = slot.word.step if slot else -1
                line.say(sw.CopiedWhole(lease=line.lease, number=number, step=step))
            case vw.NowStable():
                line.say(sw.StableSaid(lease=line.lease))
            case _:
                raise AssertionError(f"{said.word} is the first word of a line")

    def _heard(self, line: SimLine, word: vw.ToRank) -> None:
        if line is self.line:
            self._do(self.machine.heard(word))

    def _lost(self, line: SimLine) -> None:
        if line is self.line:
            self._lose("the vault is gone")

    def _lose(self, why: str) -> None:
        self._do(self.machine.lost(why))


def _hand_over(copies: SimCopies, do: sw.SendCopy | sw.SendStable | sw.EndCopies) -> None:
    match do:
        case sw.SendCopy():
            copies.send(do)
        case sw.SendStable():
            copies.stable()
        case sw.EndCopies():
            copies.end()
        case _:
            assert_never(do)
