"""A simulated rank's way to its vault: sealed after a while, at the buddy still later."""

from dataclasses import dataclass, field
from functools import partial

from remesh.orchestrator.sim.shells.vault import SimSlot, SimVault
from remesh.orchestrator.sim.shells.world import World
from remesh.parallel.plan.cut import Held


@dataclass(slots=True, eq=False)
class SimSnapshots:
    """One rank's snapshots in one generation: in the vault of its node, then at the buddy's.

    `safe` is the newest step that is sealed at the buddy, here if there is none; `stable` the
    newest one that was safe for all ranks when they voted. Snapshots are sealed and sent in the
    order of their steps, by `sealed_s` those that were taken so far.
    """

    world: World
    generation: int
    vault: SimVault
    buddy: SimVault | None
    slots: list[SimSlot]
    copies: list[SimSlot]
    safe: int = -1
    stable: int = -1
    sealed_s: float = 0.0
    sending: list[tuple[int, int]] = field(default_factory=list)

    def ballot(self, step: int) -> tuple[int, bool]:
        """The newest safe step, and whether a snapshot of this one is due and has a slot."""
        due = step % self.world.settings.snapshot_every == 0
        return self.safe, due and self._free() is not None

    def note_stable(self, step: int) -> None:
        self.stable = max(self.stable, step)
        for vault in (self.vault, self.buddy):
            if self.stable >= 0 and vault is not None and vault.may_write(self.generation):
                vault.forget_before(self.generation)

    def take(self, step: int, value: int) -> None:
        """Copies the state; the vault goes on by itself, whatever happens to the worker."""
        number = self._free()
        if number is None:
            return
        slot = self.slots[number]
        slot.step, slot.value, slot.sealed, slot.rotten = step, value, False, False
        now_s = self.world.agenda.now_s
        self.sealed_s = max(self.sealed_s, now_s + self.world.between(0.002, 0.1))
        self.world.agenda.after(self.sealed_s - now_s, partial(self._seal, number, step))

    def _free(self) -> int | None:
        """A slot below the stable step, of which nothing is on its way."""
        if not self.vault.may_write(self.generation):
            return None
        for number, slot in enumerate(self.slots):
            if slot.step < 0 or (slot.sealed and slot.step < self.stable):
                return number
        return None

    def _seal(self, number: int, step: int) -> None:
        if not self.vault.may_write(self.generation):
            return
        self.slots[number].sealed = True
        self.sending.append((number, step))
        if len(self.sending) == 1:
            self._send()

    def _send(self) -> None:
        """One after the other: what is safe has no gaps."""
        number, step = self.sending[0]
        if self.buddy is not None and self.buddy.may_write(self.generation):
            self.copies[number].sealed = False
        delay_s = 0.0 if self.buddy is None else self.world.between(0.01, 0.6)
        self.world.agenda.after(delay_s, partial(self._sent, number, step))

    def _sent(self, number: int, step: int) -> None:
        if not self.vault.may_write(self.generation):
            return
        buddy, slot = self.buddy, self.slots[number]
        if buddy is not None and buddy.alive and not buddy.may_write(self.generation):
            return  # the generation is over: that is no reason to do without a buddy
        if buddy is not None and (not buddy.alive or buddy.cut_off or self.vault.cut_off):
            self.buddy = None
        elif buddy is not None:
            copy = self.copies[number]
            copy.step, copy.value, copy.sealed, copy.rotten = step, slot.value, True, slot.rotten
        self.safe = step
        self.sending.pop(0)
        if self.sending:
            self._send()


def open_snapshots(
    world: World, generation: int, held: Held, from_step: int, places: tuple[str, str | None]
) -> SimSnapshots | None:
    """Of a rank on the first of these nodes, whose buddy is the second; None without a vault."""
    vault, buddy = (world.vaults.get(node or "") for node in places)
    if vault is None or not vault.may_write(generation):
        return None
    if buddy is not None and not buddy.may_write(generation):
        buddy = None
    return SimSnapshots(
        world=world,
        generation=generation,
        vault=vault,
        buddy=buddy,
        slots=vault.lease(generation, held, from_step),
        copies=[] if buddy is None else buddy.lease(generation, held, from_step),
    )
