"""What the vaults of the nodes hold, as far as they were asked and have told.

They are asked when a mesh is left without a promise, and when one has been left and too few are
there for the next. Whoever does not answer in time is not waited for again until it gives a sign.
"""

from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field
from itertools import chain

from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.control.words.recovery import slot_label


@dataclass(slots=True, kw_only=True)
class Vaults:
    """`addresses` of the living vaults by node; `told` is what they hold, in answer to the question
    of the generation `asked_in`, 0 once the next mesh forms.

    `awaited` are those whose answer is waited for, `mute` those that did not answer the last time.
    `bad` are the labels of slots that could not be read. `paused` has the reasons for which ranks
    of the mesh in being take no snapshots.
    """

    addresses: dict[str, str] = field(default_factory=dict)
    asked_in: int = 0
    awaited: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    told: dict[str, tuple[VaultSlot, ...]] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)

    def up(self, node: str, address: str) -> None:
        """A vault at another address than before is a new one, and empty."""
        if self.addresses.get(node) != address:
            self.lose(node)
            self.addresses[node] = address
        self.mute.discard(node)

    def lose(self, node: str) -> None:
        self.addresses.pop(node, None)
        self.told.pop(node, None)
        self.awaited.discard(node)
        self.mute.discard(node)

    def ask(self, generation: int, nodes: Container[str]) -> tuple[str, ...]:
        """Whom of these to ask what they hold, now that this generation is over.

        What they told before is old.
        """
        self.asked_in = generation
        self.told.clear()
        asked = [node for node in self.addresses if node in nodes]
        self.awaited = set(asked) - self.mute
        return tuple(sorted(asked))

    def tell(self, node: str, generation: int, slots: tuple[VaultSlot, ...]) -> None:
        """A late answer to an older question is a sign of life, and no more."""
        self.mute.discard(node)
        if generation == self.asked_in and node in self.addresses:
            self.told[node] = slots
            self.awaited.discard(node)

    def give_up(self, nodes: Collection[str]) -> None:
        """The answers of these are waited for no more."""
        self.mute |= self.awaited.intersection(nodes)
        self.awaited.difference_update(nodes)

    def forget(self) -> None:
        """The next mesh forms: slots may be written again."""
        self.asked_in = 0
        self.told.clear()
        self.awaited.clear()
        self.paused.clear()

    def slots(self, lineage: Lineage, heard_step: Callable[[int], int]) -> Iterator[VaultSlot]:
        """What was told, less what cannot be read or is of an abandoned timeline.

        A step whose record is in no journal counts not either: nobody could prove it. That is only
        so where all members died at once, with records that they had not reported.
        """
        for slot in chain.from_iterable(self.told.values()):
            known = slot.step <= heard_step(slot.generation)
            held = known and lineage.holds(slot.generation, slot.step)
            if held and not (self.bad and slot_label(slot) in self.bad):
                yield slot
