"""What a rank decides about its snapshots: which slot, what is safe, and what it does without."""

from itertools import pairwise

import pytest
from control_values import held

from remesh.orchestrator.vault import vault_words as vw
from remesh.orchestrator.vault.rank_slots import (
    MOST_SPOILT,
    NOTHING,
    PAUSE_STEPS,
    RankSlots,
)
from remesh.orchestrator.vault.rank_words import (
    CloseLine,
    MapSlot,
    OpenLine,
    SayPaused,
    SayVault,
    VaultWays,
)
from remesh.orchestrator.vault.snapshot_pace import Pace
from remesh.parallel.plan.step_result import ANEW, NEVER

WAYS = VaultWays(own="a:1", buddy="b:1")
ALONE = VaultWays(own="a:1", buddy="")
CLAIM = vw.LeaseSlots(
    generation=3, held=held(0, dp=2, shard_size=2), size_bytes=100, from_step=0, buddy=""
)
LIMIT_S = 5.0


class Rank:
    """A rank, its vault in words, and a clock that stands until it is moved."""

    def __init__(self, ways=WAYS, every=1):
        self.slots = RankSlots(Pace(every), LIMIT_S)
        self.now_s = 0.0
        self.did = []
        self.do(self.slots.enter(ways, CLAIM, 0, 0.0))

    def do(self, dos):
        self.did += dos
        for do in dos:
            if isinstance(do, MapSlot):
                self.slots.mapped()
        return dos

    def lease(self, count=3):
        self.do(self.slots.heard(vw.SlotsLeased(paths=tuple("012"[:count]))))
        for _ in range(count):
            self.do(self.slots.look(self.now_s))
        return self

    def ballot(self, step):
        self.do(self.slots.look(self.now_s))
        return self.slots.ballot(step, self.now_s)

    def take(self, step):
        number = self.slots.free_slot()
        self.do(self.slots.copied(number, step, 0.001, self.now_s))
        return number

    def heard(self, word):
        return self.do(self.slots.heard(word))

    def sealed(self, number, step):
        return self.heard(vw.SlotSealed(slot=number, step=step))

    def safe(self, number, step):
        self.sealed(number, step)
        return self.heard(vw.SlotSafe(slot=number, step=step))

    def paused(self):
        return [do.reason for do in self.did if isinstance(do, SayPaused)]

    def opened(self):
        return [do for do in self.did if isinstance(do, OpenLine)]


def test_it_asks_its_own_vault_and_names_the_buddy():
    (asked,) = Rank().opened()
    assert (asked.address, asked.first.buddy) == ("a:1", "b:1")


def test_a_rank_without_vaults_votes_none_and_one_that_takes_no_part_holds_up_nobody():
    slots = RankSlots(Pace(1))
    assert slots.enter(None, None, 0, 0.0) == []
    assert slots.ballot(1, 0.0) == (None, False)
    assert slots.enter(WAYS, None, 0, 0.0) == []
    assert slots.ballot(1, 0.0) == (NEVER, True)


def test_it_is_ready_once_a_slot_is_mapped_and_a_snapshot_is_due():
    rank = Rank(every=2)
    assert rank.ballot(2) == (NOTHING, False)
    rank.heard(vw.SlotsLeased(paths=("0", "1", "2")))
    assert rank.ballot(2) == (NOTHING, True)
    assert rank.ballot(3) == (NOTHING, False)


def test_how_often_one_is_due_follows_from_the_steps_that_are_made():
    """One that is copied as a step begins makes that one a twenty-fifth longer."""
    rank, due, number = Rank(every="auto").lease(), [], None
    for step in range(1, 30):
        rank.now_s += 0.52 if due[-1:] == [step - 1] else 0.5
        if due[-1:] == [step - 1]:
            rank.safe(number, step - 1)
        safe, is_due = rank.ballot(step)
        rank.slots.voted(safe)
        if is_due:
            due.append(step)
            number = rank.take(step)
    assert due == [1, 3, 5, 7, 11, 15, 19, 23, 27]


def test_with_a_buddy_only_what_the_buddy_has_is_safe():
    """M26"""
    rank = Rank().lease()
    rank.sealed(rank.take(1), 1)
    assert rank.ballot(2) == (NOTHING, True)
    rank.safe(0, 1)
    assert rank.ballot(2) == (1, True)


def test_without_a_buddy_what_the_own_vault_has_is_safe():
    rank = Rank(ALONE).lease()
    rank.sealed(rank.take(1), 1)
    assert rank.ballot(2) == (1, True)


def test_a_buddy_that_takes_no_more_makes_safe_what_is_sealed_here():
    rank = Rank().lease()
    rank.sealed(rank.take(1), 1)
    rank.take(2)
    rank.heard(vw.LeftAlone(error="it is dead"))
    assert rank.ballot(3)[0] == 1
    rank.sealed(1, 2)
    assert rank.ballot(3)[0] == 2


def test_a_generation_that_is_over_at_the_vault_is_no_reason_to_do_without_it():
    rank = Rank().lease()
    rank.sealed(rank.take(1), 1)
    rank.heard(vw.GenerationOver())
    assert rank.slots.safe == NOTHING
    for step in range(2, 500):
        assert not rank.ballot(step)[1]
    assert rank.paused() == []
    assert len(rank.opened()) == 1


def test_no_slot_at_or_above_the_stable_step_is_written_over():
    """M03"""
    rank = Rank().lease()
    for step in (1, 2, 3):
        rank.safe(rank.take(step), step)
    assert rank.ballot(4) == (3, False)
    rank.slots.voted(1)
    assert rank.slots.free_slot() is None
    rank.slots.voted(2)
    assert rank.slots.free_slot() == 0
    assert rank.take(4) == 0
    assert rank.slots.free_slot() is None
    rank.slots.voted(3)
    assert rank.slots.free_slot() == 1


def test_what_is_on_its_way_is_not_written_over_whatever_is_stable():
    rank = Rank().lease()
    rank.take(1)
    rank.sealed(rank.take(2), 2)
    rank.take(3)
    rank.slots.voted(3)
    assert rank.slots.free_slot() is None


def test_the_vault_hears_once_that_a_generation_is_stable():
    rank = Rank().lease()
    for step in (1, 2):
        rank.safe(rank.take(step), step)
    assert rank.slots.voted(NOTHING) == []
    assert rank.slots.voted(NEVER) == []
    assert rank.slots.voted(1) == [SayVault(word=vw.NowStable())]
    assert rank.slots.voted(2) == []
    assert rank.slots.stable == 2


def test_one_that_begins_anew_amid_a_vote_gives_up_nothing_of_before():
    """What is stable lies in the slots that it has left, until a newer one is."""
    rank = Rank(ALONE).lease()
    rank.sealed(rank.take(1), 1)
    assert rank.ballot(2) == (1, True)
    rank.do(rank.slots.move(WAYS, 0.0))
    assert rank.slots.voted(1) == []
    rank.lease()
    assert rank.ballot(2) == (ANEW, False)
    rank.slots.voted(ANEW)
    rank.safe(rank.take(3), 3)
    assert rank.slots.voted(3) == [SayVault(word=vw.NowStable())]


def test_one_that_lost_its_slots_says_so_once_and_counts_nothing_of_before():
    rank = Rank(ALONE).lease()
    rank.safe(rank.take(1), 1)
    rank.do(rank.slots.lost("reset"))
    assert rank.ballot(2) == (ANEW, False)
    rank.slots.voted(ANEW)
    assert rank.ballot(3) == (NOTHING, False)


def test_when_another_begins_anew_only_what_was_stable_counts():
    """A copy that arrives late is of a step that the other one may lack."""
    rank = Rank().lease()
    for step in (1, 2):
        rank.safe(rank.take(step), step)
    rank.slots.voted(1)
    rank.take(3)
    assert rank.ballot(4) == (2, False)
    rank.slots.voted(ANEW)
    assert rank.ballot(4) == (NOTHING, True)
    assert rank.slots.free_slot() == 1  # step 2 was not stable, step 1 stays
    rank.safe(2, 3)
    assert rank.ballot(4) == (NOTHING, True)
    rank.safe(rank.take(4), 4)
    assert rank.ballot(5) == (4, True)
    rank.slots.voted(NOTHING)  # the other has none yet
    assert rank.ballot(6) == (4, True)


def test_a_vault_that_is_gone_is_tried_again_after_steps_and_said_if_it_stays_so():
    rank = Rank().lease()
    rank.do(rank.slots.lost("connection reset"))
    assert rank.paused() == []
    for step in range(PAUSE_STEPS):
        assert len(rank.opened()) == 1
        rank.ballot(step)
    assert len(rank.opened()) == 2
    rank.do(rank.slots.lost("connection refused"))
    assert rank.paused() == ["connection refused"]
    for step in range(2 * PAUSE_STEPS):
        assert len(rank.opened()) == 2
        rank.ballot(step)
    assert len(rank.opened()) == 3
    rank.lease()
    assert rank.ballot(9)[0] == ANEW


def test_without_room_it_is_said_once_and_asked_again_ever_more_rarely():
    rank = Rank()
    asked_at = []
    for step in range(20_000):
        before = len(rank.opened())
        rank.ballot(step)
        if len(rank.opened()) > before or not step:
            asked_at.append(step)
            rank.heard(vw.Refused(error="no room"))
    assert rank.paused() == ["no room"]
    gaps = [after - before for before, after in pairwise(asked_at)]
    assert gaps[:4] == [PAUSE_STEPS, 2 * PAUSE_STEPS, 4 * PAUSE_STEPS, 8 * PAUSE_STEPS]
    assert max(gaps) == 64 * PAUSE_STEPS
    while len(rank.opened()) == len(asked_at):
        rank.ballot(1)
    rank.lease()
    assert rank.ballot(1) == (NOTHING, True)


def test_a_spoilt_snapshot_is_followed_by_the_next_and_some_by_another_lease():
    rank = Rank().lease()
    for number in range(MOST_SPOILT):
        assert len(rank.opened()) == 1
        slot = rank.take(number)
        rank.heard(vw.SlotSpoilt(slot=slot, error="no header"))
        assert rank.ballot(number + 1)[0] == ANEW
        rank.slots.voted(ANEW)
        assert (rank.slots.free_slot() is not None) == (number + 1 < MOST_SPOILT)
    assert rank.paused() == ["a snapshot could not be sealed: no header"]
    for step in range(PAUSE_STEPS):
        rank.ballot(step)
    assert len(rank.opened()) == 2


def test_a_snapshot_that_is_safe_ends_the_count_of_spoilt_ones():
    rank = Rank(ALONE).lease()
    for step in range(2 * MOST_SPOILT):
        rank.heard(vw.SlotSpoilt(slot=rank.take(step), error="no header"))
        rank.slots.voted(ANEW)
        rank.sealed(rank.take(step), step)
        rank.slots.voted(step + 1)
    assert len(rank.opened()) == 1


@pytest.mark.parametrize("leased", [False, True])
def test_a_vault_that_gives_no_answer_is_said_and_left(leased):
    rank = Rank()
    if leased:
        rank.lease()
        rank.now_s = 3.0
        rank.take(1)
    rank.now_s += LIMIT_S
    rank.ballot(2)
    assert rank.paused() == []
    rank.now_s += 0.1
    rank.ballot(2)
    assert rank.paused() == ["the vault has not answered for 5 s"]
    assert isinstance(rank.did[-2], CloseLine)


def test_a_buddy_may_take_its_time():
    rank = Rank().lease()
    rank.sealed(rank.take(1), 1)
    rank.now_s = 1000.0
    rank.ballot(2)
    assert rank.paused() == []


def test_another_vault_is_asked_at_once():
    rank = Rank().lease()
    rank.do(rank.slots.lost("reset"))
    rank.do(rank.slots.move(VaultWays(own="a:2", buddy="b:1"), 0.0))
    assert rank.opened()[-1].address == "a:2"
    assert rank.slots.move(VaultWays(own="a:2", buddy="b:1"), 0.0) == []


def test_the_buddy_of_one_that_has_none_is_taken_and_a_better_one_is_not():
    """Amid a copy too: it is the old vault's, and counts for nothing once the rank begins anew."""
    rank = Rank().lease()
    rank.take(1)
    assert rank.slots.move(VaultWays(own="a:1", buddy="c:1"), 0.0) == []
    rank.heard(vw.LeftAlone(error="it is dead"))
    dos = rank.do(rank.slots.move(VaultWays(own="a:1", buddy="d:1"), 0.0))
    assert isinstance(dos[0], CloseLine)
    assert dos[1].first.buddy == "d:1"
    rank.lease()
    assert rank.ballot(2) == (ANEW, False)


def test_one_without_a_buddy_that_is_told_the_same_again_stays_as_it_is():
    rank = Rank().lease()
    rank.heard(vw.LeftAlone(error="it is dead"))
    assert rank.slots.move(WAYS, 0.0) == []


def test_what_is_left_is_touched_no_more():
    rank = Rank().lease()
    rank.take(1)
    assert rank.slots.leave() == [CloseLine()]
    assert rank.slots.leave() == []
    assert rank.slots.free_slot() is None
    assert rank.slots.ballot(2, 0.0) == (None, False)
    assert rank.slots.heard(vw.SlotSafe(slot=0, step=1)) == []
    assert rank.slots.move(VaultWays(own="a:2", buddy=""), 0.0) == []
    rank.do(rank.slots.enter(WAYS, CLAIM, 5, 0.0))
    rank.lease()
    assert rank.ballot(6) == (NOTHING, True)


def test_a_generation_knows_nothing_of_the_one_before():
    rank = Rank(every=3).lease()
    rank.safe(rank.take(3), 3)
    rank.slots.voted(3)
    rank.heard(vw.SlotSpoilt(slot=rank.take(6), error="no header"))
    rank.do(rank.slots.lost("reset"))
    rank.heard(vw.GenerationOver())
    rank.do(rank.slots.enter(WAYS, CLAIM, 1, 0.0))
    rank.lease()
    assert rank.slots.stable == NOTHING
    assert rank.ballot(3) == (NOTHING, True)
    rank.heard(vw.SlotSpoilt(slot=rank.take(3), error="no header"))
    assert len(rank.paused()) == 2
    assert len(rank.opened()) == 2


def test_no_other_vault_is_asked_in_a_generation_that_is_over():
    rank = Rank().lease()
    rank.heard(vw.GenerationOver())
    assert rank.slots.move(VaultWays(own="a:2", buddy="b:1"), 0.0) == []
