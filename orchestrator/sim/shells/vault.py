"""A simulated vault: slots of snapshots by generation and part."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.parallel.plan.cut import Held

NUM_SLOTS = 3

Promises = dict[int, tuple[int, list[tuple["SimVault", Held]]]]


@dataclass(slots=True, eq=False)
class SimSlot:
    """`value` stands for a part of the parameters at `step`. A `rotten` one cannot be read."""

    held: Held
    step: int = -1
    value: int = 0
    sealed: bool = False
    rotten: bool = False


@dataclass(slots=True, eq=False)
class SimVault:
    """Slots by generation and part. `told` are those that it has ever told of.

    `promised` is the world's: the stable step of each generation, and who had it sealed.
    """

    promised: Promises
    node: str
    address: str
    alive: bool = True
    cut_off: bool = False
    asked_in: int = 0
    leases: dict[tuple[int, Held], list[SimSlot]] = field(default_factory=dict)
    told: set[VaultSlot] = field(default_factory=set)

    def lease(self, generation: int, held: Held, from_step: int) -> list[SimSlot]:
        """What a newer generation abandons goes at once."""
        for (older, _), slots in self.leases.items():
            for slot in slots:
                slot.sealed &= older >= generation or slot.step <= from_step
        promised = self.promised
        for older in [
            g for g, (step, _) in promised.items() if g < generation and step > from_step
        ]:
            del promised[older]
        free = [SimSlot(held) for _ in range(NUM_SLOTS)]
        return self.leases.setdefault((generation, held), free)

    def may_write(self, generation: int) -> bool:
        return self.alive and generation > self.asked_in

    def forget_before(self, generation: int) -> None:
        """A snapshot of this generation is stable."""
        self.leases = {key: slots for key, slots in self.leases.items() if key[0] >= generation}

    def tell(self, generation: int) -> tuple[VaultSlot, ...]:
        """What is sealed here; from now on nothing of this generation changes."""
        self.asked_in = max(self.asked_in, generation)
        told = tuple(self._sealed())
        self.told.update(told)
        for number, (step, places) in self.promised.items():
            for vault, held in places:
                kept = any((s.generation, s.held, s.step) == (number, held, step) for s in told)
                if vault is self and not kept and (number, held) in self.leases:
                    raise InvariantError(f"{self.node} has given up step {step} of {number}")
        return told

    def find(self, slot: VaultSlot) -> SimSlot | None:
        """The slot, if it can be read. It has to be there if this very vault has told of it."""
        if not self.alive or self.cut_off:
            return None
        for one in self.leases.get((slot.generation, slot.held), ()):
            if one.sealed and one.step == slot.step:
                return None if one.rotten else one
        if slot in self.told:
            raise InvariantError(f"{slot} is not there any more")
        return None

    def die(self) -> None:
        self.alive = False
        self.leases.clear()

    def _sealed(self) -> Iterator[VaultSlot]:
        for (generation, _), slots in self.leases.items():
            for slot in slots:
                if slot.sealed:
                    yield VaultSlot(
                        vault=self.node, held=slot.held, generation=generation, step=slot.step
                    )
