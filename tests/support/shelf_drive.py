"""A vault without memory or threads: its machine, and what that has done."""

from control_values import held

from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.shelf import Shelf
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord

SIZE_BYTES = 100


def claim(generation, rank=0, from_step=0, **more):
    return sw.Claim(
        generation=generation,
        held=held(rank, dp=2, shard_size=2),
        size_bytes=SIZE_BYTES,
        from_step=from_step,
        **more,
    )


class DrivenShelf:
    """A shelf and memory of so many slots. `words` is what stands in each slot, `mapped` who may
    have it mapped, `said` all that was done; hashes and copies are true at once, unless `slow`.
    """

    def __init__(self, room=100, *, slow=False, line=None):
        self.machine = Shelf()
        self.room = room
        self.slow = slow
        self.line = line
        self.words = {}
        self.mapped = {}
        self.freed = []
        self.said = []
        self.waiting = []
        self._numbers = iter(range(1, 10**6))

    def say(self, word):
        """Everything that was done about it, in order."""
        before = len(self.said)
        if self.line:
            self.line("> ", word)
        for do in self.machine.handle(word):
            self.said.append(do)
            if self.line:
                self.line("  ", do)
            self._do(do)
        return self.said[before:]

    def lease(self, number, asked):
        """The slots that were granted, None if it was refused."""
        said = self.say(sw.Claimed(lease=number, claim=asked))
        granted = [do.slots for do in said if isinstance(do, sw.Grant)]
        return granted[0] if granted else None

    def copy(self, number, index, step, **more):
        """A worker copies its state into a slot, and says so."""
        slot = self.machine.leases[number].places[index].slot
        self.words[slot] = SlotWord(state=SlotState.COPIED, step=step)
        return self.say(sw.CopiedWhole(lease=number, number=index, step=step, **more))

    def put(self, number, index, step):
        """Another vault puts a copy."""
        return self.say(sw.PutOffered(lease=number, number=index, step=step))

    def begin(self, number, index, step):
        """A worker begins to write over a slot."""
        slot = self.machine.leases[number].places[index].slot
        self.words[slot] = SlotWord(state=SlotState.WRITING, step=step)

    def gone(self, number):
        """The worker of a lease is gone, and says nothing more."""
        said = self.say(sw.HungUp(lease=number))
        return said + self.let_go(number)

    def let_go(self, number):
        lease = self.machine.leases.get(number)
        if lease is None or not lease.mapped:
            return []
        slots = lease.in_memory()
        for slot in slots:
            self.mapped.pop(slot, None)
        words = tuple(self.words.get(slot, SlotWord()) for slot in slots)
        return self.say(sw.LetGo(lease=number, words=words))

    def told(self, generation, *, wait=False):
        """(generation, step) of what was told, None if it was not told yet."""
        said = self.say(sw.VaultAsked(generation=generation))
        if wait:
            said += self.say(sw.WaitedEnough())
        return told_of(said)

    def go_on(self):
        """What was slow is done."""
        before = len(self.said)
        waiting, self.waiting = self.waiting, []
        for word in waiting:
            self.say(word)
        return self.said[before:]

    def _do(self, do):
        match do:
            case sw.MakeRoom():
                self._make_room(do)
            case sw.FreeSlots():
                self._free(do.slots)
            case sw.Grant():
                if not self.machine.leases[do.lease].claim.guest:
                    self.mapped |= dict.fromkeys(do.slots, do.lease)
            case sw.Prove():
                self._later(sw.Proved(lease=do.lease, number=do.number, step=do.step))
                self.words[do.slot] = SlotWord(state=SlotState.SEALED, step=do.step)
            case sw.TakeIn():
                self._later(sw.PutArrived(lease=do.lease, number=do.number))
            case sw.RescueSlot():
                slot = next(self._numbers)
                self.words[slot] = self.words[do.slot]
                self._later(sw.Rescued(lease=do.lease, number=do.number, slot=slot))
            case _:
                pass

    def _later(self, word):
        if self.slow:
            self.waiting.append(word)
        else:
            self.say(word)

    def _make_room(self, do):
        count = min(do.count, self.room)
        self.room -= count
        slots = tuple(next(self._numbers) for _ in range(count))
        lack = "" if count == do.count else "no room"
        self.say(sw.RoomGiven(lease=do.lease, slots=slots, lack=lack))

    def _free(self, slots):
        """What is handed on, nobody may have mapped, and only once."""
        for slot in slots:
            assert slot not in self.mapped, f"slot {slot} is handed on while a mapper may live"
            assert slot not in self.freed, f"slot {slot} is handed on twice"
        self.freed += slots
        self.room += len(slots)


def told_of(said):
    told = [do for do in said if isinstance(do, sw.TellSlots)]
    return sorted((one.generation, one.step) for one in told[-1].slots) if told else None


def of_kind(said, *kinds):
    return [do for do in said if isinstance(do, kinds)]


def words_to_rank(said):
    return [type(do.word).__name__ for do in said if isinstance(do, sw.TellRank)]
