"""Every state of a vault and of a rank's slots, and every word in each: none breaks anything."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shelf_drive import DrivenShelf, claim, of_kind

from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault import vault_words as vw
from remesh.orchestrator.vault.rank_slots import RankSlots
from remesh.orchestrator.vault.rank_words import VaultWays
from remesh.orchestrator.vault.shelf import _HEEDED
from remesh.orchestrator.vault.snapshot_pace import Pace
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord
from remesh.parallel.plan.step_result import ANEW, NEVER

GENERATION = 3


def words(lease, *, generation=GENERATION):
    """One of each kind at least."""
    made = [SlotWord(state=state, step=9) for state in (SlotState.COPIED, SlotState.WRITING)]
    return [
        sw.Claimed(lease=lease + 10, claim=claim(generation)),
        sw.RoomGiven(lease=lease, slots=(901, 902, 903)),
        sw.RoomGiven(lease=lease, slots=(), lack="no room"),
        sw.CopiedWhole(lease=lease, number=0, step=9),
        sw.CopiedWhole(lease=lease, number=7, step=9),
        sw.PutOffered(lease=lease, number=1, step=9),
        sw.PutArrived(lease=lease, number=1),
        sw.Proved(lease=lease, number=0, step=9),
        sw.Proved(lease=lease, number=2, step=5, error="no snapshot"),
        sw.CopyTaken(lease=lease),
        sw.CopiesRefused(lease=lease, error="it is dead"),
        sw.CopiesRefused(lease=lease, error=""),
        sw.StableSaid(lease=lease),
        sw.HungUp(lease=lease),
        sw.LetGo(lease=lease, words=(made[0], SlotWord(), made[1])),
        sw.VaultAsked(generation=generation),
        sw.WaitedEnough(),
        sw.Rescued(lease=lease, number=0, slot=904),
        sw.Rescued(lease=lease, number=0, slot=None),
    ]


def kinds_of(union):
    return set(get_args(union))


def test_the_words_are_all_that_there_are():
    assert {type(word) for word in words(1)} == kinds_of(sw.ShelfWord)
    assert kinds_of(sw.OfLease) == set(_HEEDED)


def nothing(_):
    pass


def claimed(shelf):
    shelf.machine.handle(sw.Claimed(lease=1, claim=claim(GENERATION, copied=True)))


def granted(shelf):
    shelf.lease(1, claim(GENERATION, copied=True))


def proving(shelf):
    granted(shelf)
    shelf.copy(1, 0, 5)


def sealed(shelf):
    proving(shelf)
    shelf.go_on()


def sent_on(shelf):
    sealed(shelf)
    shelf.copy(1, 1, 6)
    shelf.go_on()
    shelf.say(sw.CopyTaken(lease=1))


def hung_up(shelf):
    sealed(shelf)
    shelf.say(sw.HungUp(lease=1))


def left(shelf):
    sealed(shelf)
    shelf.gone(1)


def unneeded(shelf):
    sealed(shelf)
    shelf.lease(2, claim(GENERATION + 1, from_step=5))
    shelf.say(sw.StableSaid(lease=2))


def guest(shelf):
    shelf.lease(1, claim(GENERATION, guest=True))
    shelf.put(1, 0, 5)
    for _ in range(2):
        shelf.go_on()


def receiving(shelf):
    guest(shelf)
    shelf.put(1, 1, 6)


def asked(shelf):
    sealed(shelf)
    shelf.told(GENERATION)


def rescuing(shelf):
    asked(shelf)
    shelf.say(sw.WaitedEnough())


def rescued(shelf):
    rescuing(shelf)
    shelf.go_on()


def over(shelf):
    left(shelf)
    shelf.told(GENERATION)


def guest_over(shelf):
    receiving(shelf)
    shelf.told(GENERATION)


STATES = [
    nothing,
    claimed,
    granted,
    proving,
    sealed,
    sent_on,
    hung_up,
    left,
    unneeded,
    guest,
    receiving,
    asked,
    rescuing,
    rescued,
    over,
    guest_over,
]
TOLD = [rescued, over, guest_over]


def fitting(state, word):
    """Whether memory or a mapper could say so: room twice, or of slots that are not mapped."""
    room = isinstance(word, sw.RoomGiven)
    lets_go = isinstance(word, sw.LetGo)
    return not (room and state not in (nothing, claimed)) and not (
        lets_go and state in (nothing, claimed)
    )


CASES = [
    pytest.param(state, word, id=f"{state.__name__}-{number}-{type(word).__name__}")
    for state in STATES
    for number, word in enumerate(words(1) + words(99))
    if fitting(state, word)
]


@pytest.mark.parametrize(("state", "word"), CASES)
def test_any_word_in_any_state_breaks_nothing(state, word):
    shelf = DrivenShelf(slow=True)
    state(shelf)
    if isinstance(word, sw.LetGo):
        shelf.mapped.clear()
    shelf.say(word)
    shelf.go_on()
    shelf.go_on()


@pytest.mark.parametrize(("state", "word"), [case for case in CASES if case.values[0] in TOLD])
def test_no_word_changes_what_was_told(state, word):
    shelf = DrivenShelf(slow=True)
    state(shelf)
    told = set(of_kind(shelf.said, sw.TellSlots)[-1].slots)
    if isinstance(word, sw.LetGo):
        shelf.mapped.clear()
    said = shelf.say(word)
    said += shelf.go_on()
    assert set(shelf.machine.kept(GENERATION)) == told
    assert of_kind(said, sw.TakeIn, sw.Grant, sw.SendStable) == []
    freed = {slot for do in of_kind(said, sw.FreeSlots) for slot in do.slots}
    assert not freed & {one.slot for one in told}


LEASES = st.sampled_from([1, 2, 3, 4])
ACTS = st.one_of(
    st.tuples(st.just("lease"), LEASES, st.booleans()),
    st.tuples(st.just("copy"), LEASES, st.sampled_from([0, 1, 2])),
    st.tuples(st.just("gone"), LEASES, st.none()),
    st.tuples(st.just("hang up"), LEASES, st.none()),
    st.tuples(st.just("stable"), LEASES, st.none()),
    st.tuples(st.just("taken"), LEASES, st.none()),
    st.tuples(st.just("ask"), LEASES, st.booleans()),
    st.tuples(st.just("go on"), LEASES, st.none()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_whatever_happens_what_was_told_stays_until_a_newer_generation_has_more(acts):
    """And no slot is handed on while a mapper may live, nor twice: the drive looks at that."""
    shelf = DrivenShelf(slow=True)
    told: set[sw.KeptSlot] = set()
    for step, (act, lease, more) in enumerate(acts, start=1):
        before = len(shelf.said)
        ACTED[act](shelf, lease, more, step)
        for do in of_kind(shelf.said[before:], sw.TellSlots):
            told = set(do.slots)
        kept = set(shelf.machine.kept(shelf.machine.asked_in))
        assert kept <= told
        if act not in ("stable", "lease"):
            assert kept == told


def do_copy(shelf, lease, number, step):
    found = shelf.machine.leases.get(lease)
    if found is None or found.at(number) is None or found.places[number].slot < 0:
        return
    if found.claim.guest:
        shelf.put(lease, number, step)
    elif found.places[number].slot in shelf.mapped:
        shelf.copy(lease, number, step)


def do_lease(shelf, lease, more, step):
    if lease not in shelf.machine.leases:
        guest = bool(more and lease % 2)
        shelf.lease(lease, claim(generation_of(lease), from_step=step, guest=guest))


def generation_of(lease):
    return (lease + 1) // 2


ACTED = {
    "lease": do_lease,
    "copy": do_copy,
    "gone": lambda shelf, lease, *_: shelf.gone(lease),
    "hang up": lambda shelf, lease, *_: shelf.say(sw.HungUp(lease=lease)),
    "stable": lambda shelf, lease, *_: shelf.say(sw.StableSaid(lease=lease)),
    "taken": lambda shelf, lease, *_: shelf.say(sw.CopyTaken(lease=lease)),
    "ask": lambda shelf, lease, more, _: shelf.told(generation_of(lease), wait=more),
    "go on": lambda shelf, *_: shelf.go_on(),
}


WAYS = VaultWays(own="a:1", buddy="b:1")
LEASE = vw.LeaseSlots(
    generation=GENERATION, held=claim(1).held, size_bytes=100, from_step=0, buddy=""
)


def entered(*heard):
    def made():
        slots = RankSlots(Pace(1), 5.0)
        slots.enter(WAYS, LEASE, 0, 0.0)
        for act in heard:
            act(slots)
        return slots

    return made


def leased(slots):
    slots.heard(vw.SlotsLeased(paths=("0", "1", "2")))
    for _ in range(3):
        slots.look(0.0)
        slots.mapped()


def copied(slots):
    slots.copied(0, 5, 0.1, 0.0)


RANKS = [
    entered(),
    entered(leased),
    entered(leased, copied),
    entered(leased, copied, lambda slots: slots.heard(vw.SlotSealed(slot=0, step=5))),
    entered(leased, lambda slots: slots.lost("reset")),
    entered(leased, lambda slots: slots.heard(vw.Refused(error="no room"))),
    entered(leased, lambda slots: slots.heard(vw.GenerationOver())),
    entered(leased, lambda slots: slots.leave()),
]
SAID = [
    lambda slots: slots.heard(vw.SlotsLeased(paths=("3",))),
    lambda slots: slots.heard(vw.SlotSealed(slot=0, step=5)),
    lambda slots: slots.heard(vw.SlotSealed(slot=8, step=5)),
    lambda slots: slots.heard(vw.SlotSafe(slot=0, step=5)),
    lambda slots: slots.heard(vw.SlotSafe(slot=8, step=5)),
    lambda slots: slots.heard(vw.SlotSpoilt(slot=0, error="no header")),
    lambda slots: slots.heard(vw.SlotSpoilt(slot=8, error="no header")),
    lambda slots: slots.heard(vw.LeftAlone(error="it is dead")),
    lambda slots: slots.heard(vw.Refused(error="no room")),
    lambda slots: slots.heard(vw.GenerationOver()),
    lambda slots: slots.lost("reset"),
    lambda slots: slots.move(VaultWays(own="c:1", buddy=""), 0.0),
    lambda slots: slots.look(100.0),
    lambda slots: slots.ballot(9, 1.0),
    lambda slots: slots.voted(4),
    lambda slots: slots.voted(ANEW),
    lambda slots: slots.voted(NEVER),
    lambda slots: slots.leave(),
    lambda slots: slots.enter(WAYS, LEASE, 9, 0.0),
]


@pytest.mark.parametrize("said", range(len(SAID)))
@pytest.mark.parametrize("state", range(len(RANKS)))
def test_any_word_in_any_state_of_a_ranks_slots_breaks_nothing(state, said):
    slots = RANKS[state]()
    SAID[said](slots)
    for step in range(20):
        slots.look(200.0)
        safe, ready = slots.ballot(step, 200.0)
        assert safe is None or safe >= ANEW
        assert not ready or slots.claim is None or slots.free_slot() is not None


HAPPENS = st.sampled_from(["vote", "vote", "hear", "hear", "lose", "spoil"])


class RuledRank:
    """A rank, what is on its way to it, and which steps it has safe."""

    def __init__(self):
        self.slots = entered(leased)()
        self.sent = []
        self.has = set()

    def take(self, step):
        number = self.slots.free_slot()
        if number is None:
            return
        self.has.discard(self.slots.slots[number].step)
        self.slots.copied(number, step, 0.1, 0.0)
        self.sent += [vw.SlotSealed(slot=number, step=step), vw.SlotSafe(slot=number, step=step)]

    def hear(self):
        if not self.sent:
            return
        word = self.sent.pop(0)
        self.slots.heard(word)
        if isinstance(word, vw.SlotSafe):
            self.has.add(word.step)

    def spoil(self):
        """The vault could not seal what comes next."""
        if self.sent and isinstance(self.sent[0], vw.SlotSealed):
            word = self.sent.pop(0)
            self.sent.pop(0)
            self.slots.heard(vw.SlotSpoilt(slot=word.slot, error="no header"))
            if not self.slots.slots:
                self.lose()

    def lose(self):
        """Its vault dies, and another one is there at once."""
        self.sent.clear()
        self.has.clear()
        self.slots.lost("reset")
        while not self.slots._has_line:
            self.slots.look(0.0)
        leased(self.slots)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["vote", "vote", "hear", "hear", "lose", "spoil"]), st.integers(0, 2)
        ),
        max_size=60,
    )
)
def test_what_the_least_vote_calls_stable_all_ranks_have(acts):
    """Whoever loses its vault, and in whatever order the news of copies comes in."""
    ranks = [RuledRank() for _ in range(3)]
    for step, (act, which) in enumerate(acts, start=1):
        if act != "vote":
            getattr(ranks[which], act)()
            continue
        votes = [rank.slots.ballot(step, 0.0) for rank in ranks]
        stable = min(safe for safe, _ in votes)
        for rank in ranks:
            assert stable < 0 or stable in rank.has
            rank.slots.voted(stable)
        if all(ready for _, ready in votes):
            for rank in ranks:
                rank.take(step)
