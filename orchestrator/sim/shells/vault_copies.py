"""A simulated line from a vault to its buddy: copies take long, and no word crosses a cut."""

from collections.abc import Callable
from dataclasses import dataclass, field

from remesh.orchestrator.sim.shells.vault import SimVault, VaultWorld
from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord

TRY_AGAIN_S = 0.05


@dataclass(slots=True, eq=False)
class SimCopies:
    """Of one lease of `vault`. It is the tenant of a lease at the buddy, which is `there`.

    `carried` is the snapshot on its way, as it was when it left: its step, value, and whether it
    was rotten.
    """

    world: VaultWorld
    vault: SimVault
    lease: int
    buddy: SimVault | None
    there: int = 0
    is_ready: bool = False
    is_over: bool = False
    waiting: list[sw.SendCopy] = field(default_factory=list)
    carried: tuple[int, int, bool] = (-1, 0, False)

    def open(self, claim: sw.Claim) -> None:
        self._across(lambda buddy: self._claim(buddy, claim))

    def send(self, do: sw.SendCopy) -> None:
        if not self.is_ready:
            self.waiting.append(do)
            return
        slot = self.vault.slots[do.slot]
        self.carried = (do.step, slot.value, slot.rotten)
        offer = sw.PutOffered(lease=self.there, number=do.number, step=do.step)
        self._across(lambda buddy: buddy.say(offer), self.world.between(0.01, 0.6))

    def stable(self) -> None:
        self._across(lambda buddy: buddy.say(sw.StableSaid(lease=self.there)))

    def end(self) -> None:
        """The other side hears of it once it can be reached."""
        self.is_over = True
        self._say_end()

    def hear(self, do: sw.ForTenant) -> None:
        """What the buddy has done."""
        match do:
            case sw.Grant():
                self._across(lambda _: self._begin())
            case sw.Refuse():
                self._across(lambda _: self._refused(do.reason))
            case sw.TakeIn():
                self._arrive(do)
            case sw.AnswerPut():
                self._across(lambda _: self._answered(do.error))
            case sw.RefusePut():
                self._across(lambda _: self._refused(""))
            case sw.EndCopies():
                pass
            case _:
                raise AssertionError(f"{do} is nothing for a guest")

    def may_write(self) -> bool:
        return False

    def vault_died(self) -> None:
        self._across(lambda _: None)

    def _claim(self, buddy: SimVault, claim: sw.Claim) -> None:
        self.there = buddy.claim(claim, self)

    def _begin(self) -> None:
        self.is_ready = True
        waiting, self.waiting = self.waiting, []
        for do in waiting:
            self.send(do)

    def _arrive(self, do: sw.TakeIn) -> None:
        assert self.buddy is not None
        slot, (step, value, rotten) = self.buddy.slots[do.slot], self.carried
        slot.word = SlotWord(state=SlotState.WRITING, step=step)
        slot.value, slot.rotten = value, rotten
        self.buddy.say(sw.PutArrived(lease=do.lease, number=do.number))

    def _answered(self, error: str) -> None:
        if error:
            self._refused(error)
        else:
            self.vault.say(sw.CopyTaken(lease=self.lease))

    def _refused(self, why: str) -> None:
        self.vault.say(sw.CopiesRefused(lease=self.lease, error=why))
        self.is_over = True
        self._say_end()

    def _across(self, action: Callable[[SimVault], None], delay_s: float | None = None) -> None:
        """To the other side or back, for as long as a line waits."""
        until_s = self.world.agenda.now_s + self.world.timers.form_s

        def arrive() -> None:
            if self.is_over or not self.vault.alive:
                return
            if self.buddy is None or not self.buddy.alive:
                self._refused("it is dead")
            elif self.world.reaches({self.vault.node, self.buddy.node}):
                action(self.buddy)
            elif self.world.agenda.now_s > until_s:
                self._refused("it has not answered")
            else:
                self.world.agenda.after(TRY_AGAIN_S, arrive)

        self.world.agenda.after(delay_s or self.world.between(0.0005, 0.01), arrive)

    def _say_end(self) -> None:
        def arrive() -> None:
            buddy = self.buddy
            if buddy is None or not buddy.alive or not self.there:
                return
            if self.world.reaches({self.vault.node, buddy.node}):
                buddy.say(sw.HungUp(lease=self.there))
            else:
                self.world.agenda.after(TRY_AGAIN_S, arrive)

        self.world.agenda.after(self.world.between(0.0005, 0.01), arrive)
