"""A simulated vault: the machine of a vault; its memory is values, its hashing takes a while.

What a rank may write to is known by the line that it has mapped a slot through: as a lock of the
kernel does in life, that says whether anybody can still write there.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, assert_never, get_args

from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.sim.shells import freezing
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.shelf import Shelf
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord
from remesh.parallel.plan.cut import Held

WATCH_EVERY_S = 0.02

Promises = dict[int, tuple[int, list[tuple["SimVault", Held]]]]
SlotsHeard = Callable[[tuple[VaultSlot, ...]], None]


class VaultWorld(Protocol):
    """What a vault has around it. `promised` is the stable step of each generation, and who had it
    sealed; `room` is how many slots a vault may have.
    """

    agenda: Agenda
    promised: Promises

    @property
    def room(self) -> int: ...
    @property
    def timers(self) -> Timers: ...
    def between(self, low_s: float, high_s: float) -> float: ...
    def reaches(self, nodes: Collection[str]) -> bool: ...


class Tenant(Protocol):
    """Who has a lease of a vault. `may_write`: it may have slots mapped, and its process lives."""

    def hear(self, do: sw.ForTenant) -> None: ...
    def may_write(self) -> bool: ...
    def vault_died(self) -> None: ...


@dataclass(slots=True, eq=False)
class SimSlot:
    """`value` stands for a part of the parameters at the step of the word. A `rotten` one cannot be
    read. One that is `offered` can be mapped by the tenant of its lease.
    """

    word: SlotWord = field(default_factory=SlotWord)
    value: int = 0
    rotten: bool = False
    offered: bool = False
    mapper: Tenant | None = None

    @property
    def may_change(self) -> bool:
        return self.mapper is not None and self.mapper.may_write()


@dataclass(slots=True, eq=False)
class SimVault:
    """`told` are the slots that it has ever told of, with their values; `stalled` is what it missed
    while it was frozen. `spoilt` are the snapshots that had rotted when they were to be copied away
    from a mapper that may live.
    """

    world: VaultWorld
    node: str
    address: str
    alive: bool = True
    cut_off: bool = False
    frozen: bool = False
    stalled: list[Callable[[], None]] = field(default_factory=list)
    shelf: Shelf = field(default_factory=Shelf)
    slots: dict[int, SimSlot] = field(default_factory=dict)
    tenants: dict[int, Tenant] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    told: dict[VaultSlot, int] = field(default_factory=dict)
    spoilt: set[tuple[int, Held, int]] = field(default_factory=set)
    askers: list[tuple[int, SlotsHeard]] = field(default_factory=list)
    watching: set[int] = field(default_factory=set)
    numbers: int = 0

    def claim(self, claim: sw.Claim, tenant: Tenant) -> int:
        """The number of the lease, whose tenant hears what becomes of it."""
        self.numbers += 1
        lease = self.numbers
        self.tenants[lease] = tenant
        if not self.alive:
            tenant.vault_died()
        self._forget_promises(claim)
        self.say(sw.Claimed(lease=lease, claim=claim))
        return lease

    def say(self, word: sw.ShelfWord) -> None:
        self._act(partial(self._handle, word))

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        freezing.thaw(self)

    def ask(self, generation: int, answer: SlotsHeard) -> None:
        """`answer` hears what is sealed here; from then on nothing of this generation changes."""
        self.askers.append((generation, answer))
        self.say(sw.VaultAsked(generation=generation))
        self._later(self.world.timers.silent_s, partial(self._handle, sw.WaitedEnough()))

    def find(self, slot: VaultSlot) -> SimSlot | None:
        """The slot, if it can be read. It has to be there if this very vault has told of it."""
        if not self.alive or self.cut_off or self.frozen:
            return None
        kept = self.shelf.find(slot.generation, slot.step, slot.held)
        if kept is None:
            if slot in self.told:
                raise InvariantError(f"{slot} is not there any more")
            return None
        found = self.slots[kept.slot]
        if found.rotten:
            return None
        if self.told.get(slot, found.value) != found.value or found.may_change:
            raise InvariantError(f"{slot} is another than it was told of, or can be")
        return found

    def holds(self, generation: int, step: int, held: Held) -> bool:
        """Whether a snapshot is sealed here, wherever it lies."""
        return any(
            lease.is_there(number, step)
            for lease in self.shelf.leases.values()
            if (lease.generation, lease.claim.held) == (generation, held)
            for number in range(len(lease.places))
        )

    def sealed(self) -> list[SimSlot]:
        return [slot for slot in self.slots.values() if slot.word.state is SlotState.SEALED]

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.shelf = Shelf()
            self.slots.clear()
            for tenant in self.tenants.values():
                tenant.vault_died()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.world.agenda.after(delay_s, partial(self._act, action))

    def _act(self, action: Callable[[], None]) -> None:
        freezing.act(self, action)

    def _handle(self, word: sw.ShelfWord) -> None:
        for do in self.shelf.handle(word):
            self._do(do)

    def _forget_promises(self, claim: sw.Claim) -> None:
        """What a newer generation abandons."""
        promised = self.world.promised
        for older, (step, _) in list(promised.items()):
            if older < claim.generation and step > claim.from_step:
                del promised[older]

    def _do(self, do: sw.ShelfDo) -> None:
        if isinstance(do, get_args(sw.ForTenant)):
            self._tell_tenant(do)
        elif isinstance(do, sw.TellSlots):
            self._tell(do)
        elif isinstance(do, sw.FreeSlots):
            self._free(do)
        elif isinstance(do, get_args(sw.TakesLong)):
            self._begin(do)

    def _tell_tenant(self, do: sw.ForTenant) -> None:
        if isinstance(do, sw.Grant):
            own = not self.shelf.leases[do.lease].claim.guest
            for slot in do.slots:
                self.slots[slot].offered = own
        self.tenants[do.lease].hear(do)

    def _begin(self, do: sw.TakesLong) -> None:
        after, between = self._later, self.world.between
        match do:
            case sw.MakeRoom():
                after(between(0.001, 0.02), partial(self._make_room, do))
            case sw.Prove():
                now_s = self.world.agenda.now_s
                until_s = max(self.busy_s.get(do.lease, 0.0), now_s) + between(0.002, 0.1)
                self.busy_s[do.lease] = until_s  # one after the other
                after(until_s - now_s, partial(self._prove, do))
            case sw.RescueSlot():
                after(between(0.002, 0.1), partial(self._rescue, do))
            case sw.WatchMapper():
                if do.lease not in self.watching:
                    self.watching.add(do.lease)
                    self._watch(do.lease)
            case _:
                assert_never(do)

    def _make_room(self, do: sw.MakeRoom) -> None:
        count = min(do.count, max(0, self.world.room - len(self.slots)))
        numbers = range(self.numbers + 1, self.numbers + count + 1)
        self.numbers += count
        self.slots |= {number: SimSlot() for number in numbers}
        lack = "" if count == do.count else "there is no room"
        self.say(sw.RoomGiven(lease=do.lease, slots=tuple(numbers), lack=lack))

    def _prove(self, do: sw.Prove) -> None:
        slot = self.slots.get(do.slot)
        if slot is None:
            return
        rotten = do.received and slot.rotten
        if not rotten:
            slot.word = SlotWord(state=SlotState.SEALED, step=do.step)
        error = "a hash is another" if rotten else ""
        self.say(sw.Proved(lease=do.lease, number=do.number, step=do.step, error=error))

    def _rescue(self, do: sw.RescueSlot) -> None:
        slot = self.slots.get(do.slot)
        if slot is None:
            return
        copy: int | None = None
        if slot.rotten:
            lease = self.shelf.leases[do.lease]
            self.spoilt.add((lease.generation, lease.claim.held, do.step))
        elif slot.word == SlotWord(state=SlotState.SEALED, step=do.step):
            self.numbers += 1
            copy = self.numbers
            self.slots[copy] = replace(slot, offered=False, mapper=None)
        self.say(sw.Rescued(lease=do.lease, number=do.number, slot=copy))

    def _watch(self, lease: int) -> None:
        """Whether nobody can write to the slots of this lease any more; else look again."""
        found = self.shelf.leases.get(lease)
        if found is None or not found.mapped:
            self.watching.discard(lease)
            return
        slots = [self.slots[number] for number in found.in_memory()]
        for slot in slots:
            slot.offered &= slot.may_change
        if any(slot.may_change for slot in slots):
            self._later(WATCH_EVERY_S, partial(self._watch, lease))
            return
        self.watching.discard(lease)
        self.say(sw.LetGo(lease=lease, words=tuple(slot.word for slot in slots)))

    def _free(self, do: sw.FreeSlots) -> None:
        for number in do.slots:
            if self.slots.pop(number).may_change:
                raise InvariantError(f"a slot of {self.node} is handed on while a mapper may live")

    def _tell(self, do: sw.TellSlots) -> None:
        told = {
            VaultSlot(vault=self.node, held=one.held, generation=one.generation, step=one.step): (
                self.slots[one.slot].value
            )
            for one in do.slots
        }
        self.told |= told
        self._check_promises(told)
        answers = [answer for generation, answer in self.askers if generation == do.generation]
        self.askers = [one for one in self.askers if one[0] != do.generation]
        for answer in answers:
            answer(tuple(told))

    def _check_promises(self, told: Collection[VaultSlot]) -> None:
        keys = {(one.generation, one.held, one.step) for one in told}
        leases = self.shelf.leases.values()
        leased = {(one.generation, one.claim.held) for one in leases if not one.unneeded}
        for number, (step, places) in self.world.promised.items():
            asked = number <= self.shelf.asked_in
            for vault, held in places:
                key = (number, held, step)
                kept = key in keys or (number, held) not in leased
                if vault is self and asked and not kept and key not in self.spoilt:
                    raise InvariantError(f"{self.node} has given up step {step} of {number}")
