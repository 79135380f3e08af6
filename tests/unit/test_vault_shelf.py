"""What a vault decides: whose slots it keeps, what it tells, and what it never hands on."""

import pytest
from control_values import held
from shelf_drive import DrivenShelf, claim, of_kind, told_of, words_to_rank

from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord


def steps(shelf, generation=100):
    """What is kept, without asking for it."""
    return sorted((one.generation, one.step) for one in shelf.machine.kept(generation))


def test_a_rank_gets_three_slots_and_what_it_copied_whole_is_sealed():
    shelf = DrivenShelf()
    assert len(shelf.lease(1, claim(1))) == 3
    assert words_to_rank(shelf.copy(1, 0, 4)) == ["SlotSealed"]
    assert steps(shelf) == []  # it may be written over
    shelf.gone(1)
    assert steps(shelf) == [(1, 4)]


def test_what_was_copied_whole_counts_though_the_worker_died_before_it_said_so():
    shelf = DrivenShelf()
    (first, second, third) = shelf.lease(1, claim(1))
    shelf.copy(1, 0, 4)
    shelf.words[second] = SlotWord(state=SlotState.COPIED, step=5)
    shelf.words[third] = SlotWord(state=SlotState.WRITING, step=6)
    shelf.gone(1)
    assert steps(shelf) == [(1, 4), (1, 5)]
    assert shelf.freed == [third]
    assert shelf.machine.find(1, 5, claim(1).held).slot == second
    assert shelf.machine.find(1, 4, claim(1).held).slot == first
    assert shelf.machine.find(1, 4, held(1, dp=2, shard_size=2)) is None


def test_what_is_being_proven_when_its_worker_goes_is_proven_once():
    shelf = DrivenShelf(slow=True)
    (slot, *_) = shelf.lease(1, claim(1))
    shelf.copy(1, 0, 4)
    shelf.words[slot] = SlotWord(state=SlotState.COPIED, step=4)  # it has not come to that yet
    assert of_kind(shelf.gone(1), sw.Prove) == []
    shelf.go_on()
    assert steps(shelf) == [(1, 4)]


def test_a_slot_that_the_worker_had_begun_to_write_over_counts_no_more():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1))
    shelf.copy(1, 0, 4)
    shelf.copy(1, 1, 5)
    shelf.begin(1, 0, 6)
    shelf.gone(1)
    assert steps(shelf) == [(1, 5)]


def test_a_spoilt_slot_is_told_and_counts_not():
    shelf = DrivenShelf(slow=True)
    shelf.lease(1, claim(1))
    shelf.copy(1, 0, 4)
    said = shelf.say(sw.Proved(lease=1, number=0, step=4, error="no snapshot"))
    assert words_to_rank(said) == ["SlotSpoilt"]
    shelf.gone(1)
    assert steps(shelf) == []


def test_earlier_generations_stay_until_a_later_one_is_stable():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1))
    for number, step in enumerate((3, 4, 5)):
        shelf.copy(1, number, step)
    shelf.gone(1)
    shelf.lease(2, claim(2, from_step=4))
    assert steps(shelf) == [(1, 3), (1, 4)]
    shelf.copy(2, 0, 5)
    assert steps(shelf) == [(1, 3), (1, 4)]
    shelf.say(sw.StableSaid(lease=2))
    assert steps(shelf) == []
    shelf.gone(2)
    assert steps(shelf) == [(2, 5)]


def test_what_a_newer_generation_abandoned_is_not_sealed_after_it():
    shelf = DrivenShelf(slow=True)
    (slot, *_) = shelf.lease(1, claim(1))
    shelf.copy(1, 1, 6)
    shelf.lease(2, claim(2, from_step=4))
    shelf.words[slot] = SlotWord(state=SlotState.COPIED, step=5)
    shelf.gone(1)
    shelf.go_on()
    assert steps(shelf) == []


def test_a_slot_whose_mapper_may_live_is_not_handed_on():
    """M33"""
    shelf = DrivenShelf()
    zombie = shelf.lease(1, claim(1))
    shelf.copy(1, 0, 3)
    shelf.say(sw.HungUp(lease=1))  # the line has ended, the process may go on
    shelf.lease(2, claim(2, from_step=2))
    shelf.say(sw.StableSaid(lease=2))
    shelf.told(2)
    shelf.say(sw.WaitedEnough())
    assert not set(shelf.freed) & set(zombie)
    shelf.let_go(1)
    assert set(zombie) <= set(shelf.freed)


def test_the_oldest_useless_generation_goes_for_a_new_one():
    """Of the generations after the last one that had anything stable."""
    shelf = DrivenShelf()
    for generation in (1, 2, 3):
        shelf.lease(generation, claim(generation, from_step=generation - 1))
        shelf.copy(generation, 0, generation)
        if generation == 1:
            shelf.say(sw.StableSaid(lease=1))
        shelf.gone(generation)
    assert steps(shelf) == [(1, 1), (2, 2), (3, 3)]
    shelf.room = 1
    assert len(shelf.lease(4, claim(4, from_step=3, least_slots=2))) == 2
    assert steps(shelf) == [(1, 1), (3, 3)]


def test_what_the_others_may_still_read_does_not_go_for_the_first_who_has_read_it():
    shelf = DrivenShelf()
    for generation in (1, 2):
        shelf.lease(generation, claim(generation, from_step=generation - 1))
        shelf.copy(generation, 0, generation)
        if generation == 1:
            shelf.say(sw.StableSaid(lease=1))
        shelf.gone(generation)
    shelf.room = 1
    asked = claim(3, from_step=2, least_slots=2)
    assert shelf.lease(3, asked) is None
    assert steps(shelf) == [(1, 1), (2, 2)]
    assert len(shelf.lease(4, asked)) == 2, "all have made steps since"
    assert steps(shelf) == [(1, 1)]


def test_the_generation_that_was_stable_last_does_not_go_for_a_new_one():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1))
    shelf.copy(1, 0, 1)
    shelf.say(sw.StableSaid(lease=1))
    shelf.gone(1)
    shelf.room = 1
    assert shelf.lease(2, claim(2, from_step=1, least_slots=2)) is None
    assert steps(shelf) == [(1, 1)]


def test_without_room_a_rank_is_refused_with_the_reason_and_nothing_is_kept():
    shelf = DrivenShelf(room=1)
    said = shelf.say(sw.Claimed(lease=1, claim=claim(1, least_slots=2)))
    assert of_kind(said, sw.Refuse) == [sw.Refuse(lease=1, reason="no room")]
    assert shelf.room == 1
    assert shelf.machine.leases == {}
    assert shelf.lease(2, claim(1, least_slots=1)) is not None


def test_what_was_told_of_is_not_written_to_any_more():
    """M24"""
    shelf = DrivenShelf()
    shelf.lease(1, claim(3, guest=True))
    shelf.put(1, 0, 7)
    assert shelf.told(4) == [(3, 7)]
    for step in (7, 8):
        said = shelf.put(1, 0, step)
        assert of_kind(said, sw.RefusePut, sw.TakeIn) == [sw.RefusePut(lease=1)]
    shelf.say(sw.StableSaid(lease=1))
    assert steps(shelf) == [(3, 7)]
    said = shelf.say(sw.Claimed(lease=2, claim=claim(4)))
    assert said == [sw.Refuse(lease=2, reason="")]
    shelf.lease(3, claim(5, from_step=7, guest=True))
    assert shelf.told(4) == [(3, 7)]
    shelf.say(sw.StableSaid(lease=3))
    assert steps(shelf) == []


def test_a_worker_seals_nothing_of_what_was_told_of():
    """M24"""
    shelf = DrivenShelf()
    shelf.lease(1, claim(3))
    shelf.copy(1, 0, 7)
    shelf.let_go(1)
    assert shelf.told(3) == [(3, 7)]
    assert of_kind(shelf.copy(1, 0, 9), sw.Prove) == []
    assert shelf.told(3) == [(3, 7)]


def test_a_copy_that_was_on_its_way_when_the_vault_told_is_not_taken_in():
    shelf = DrivenShelf(slow=True)
    shelf.lease(1, claim(3, guest=True))
    shelf.put(1, 0, 7)
    assert shelf.told(3) == []
    assert of_kind(shelf.go_on(), sw.RefusePut, sw.Prove) == [sw.RefusePut(lease=1)]
    assert shelf.told(3) == []


def test_the_answer_waits_for_what_is_being_sealed():
    shelf = DrivenShelf(slow=True)
    shelf.lease(1, claim(3))
    shelf.copy(1, 0, 7)
    shelf.lease(2, claim(3, rank=1, guest=True))
    shelf.put(2, 0, 7)
    shelf.go_on()
    assert shelf.told(3) is None
    shelf.gone(1)
    assert told_of(shelf.go_on()) == [(3, 7), (3, 7)]


def test_the_answer_waits_for_those_who_may_write_and_not_for_newer_ones():
    shelf = DrivenShelf()
    shelf.lease(1, claim(3))
    shelf.copy(1, 0, 7)
    shelf.lease(2, claim(4, from_step=7))
    shelf.copy(2, 0, 8)
    assert shelf.told(3) is None
    assert told_of(shelf.let_go(1)) == [(3, 7)]
    assert words_to_rank(shelf.copy(2, 1, 9)) == ["SlotSealed"]


def test_what_a_zombie_may_still_write_to_is_told_of_as_a_copy():
    shelf = DrivenShelf()
    zombie = shelf.lease(1, claim(3))
    shelf.copy(1, 0, 7)
    shelf.copy(1, 1, 8)
    shelf.begin(1, 2, 9)
    assert shelf.told(3) is None
    said = shelf.say(sw.WaitedEnough())
    assert told_of(said) == [(3, 7), (3, 8)]
    told = {one.slot for one in of_kind(said, sw.TellSlots)[0].slots}
    assert not told & set(zombie)
    assert shelf.machine.find(3, 7, claim(3).held).slot in told
    shelf.words[zombie[0]] = SlotWord(state=SlotState.COPIED, step=11)
    assert shelf.copy(1, 2, 10) == []
    shelf.let_go(1)
    assert shelf.told(3) == [(3, 7), (3, 8)]
    assert set(shelf.freed) == set(zombie)


def test_what_cannot_be_copied_away_from_a_zombie_is_not_told_of():
    shelf = DrivenShelf(slow=True)
    shelf.lease(1, claim(3))
    shelf.copy(1, 0, 7)
    shelf.go_on()
    assert shelf.told(3, wait=True) is None
    assert told_of(shelf.say(sw.Rescued(lease=1, number=0, slot=None))) == []


def test_a_copy_that_nobody_waits_for_any_more_is_given_back():
    shelf = DrivenShelf(slow=True)
    shelf.lease(1, claim(3))
    shelf.copy(1, 0, 7)
    shelf.go_on()
    shelf.told(3, wait=True)
    shelf.say(sw.Rescued(lease=1, number=0, slot=40))
    assert of_kind(shelf.say(sw.Rescued(lease=1, number=0, slot=41)), sw.FreeSlots) == [
        sw.FreeSlots(slots=(41,))
    ]


def test_an_older_question_is_answered_too_and_opens_nothing_again():
    shelf = DrivenShelf()
    shelf.told(5)
    assert shelf.told(3) == []
    assert shelf.lease(1, claim(5)) is None
    assert shelf.lease(2, claim(6)) is not None


def test_a_rank_that_begins_anew_in_a_generation_keeps_its_old_slots_until_it_is_stable():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1))
    shelf.copy(1, 0, 4)
    shelf.gone(1)
    shelf.lease(2, claim(1))
    shelf.copy(2, 0, 6)
    assert steps(shelf) == [(1, 4)]
    shelf.say(sw.StableSaid(lease=2))
    assert steps(shelf) == []


def test_what_others_had_before_they_began_anew_is_not_given_up_for_the_word_of_one():
    """The one that began anew has not copied anything since: what is stable lies there."""
    shelf = DrivenShelf()
    shelf.lease(1, claim(1, rank=1))
    shelf.copy(1, 0, 4)
    shelf.gone(1)
    shelf.lease(2, claim(1, rank=1))
    shelf.lease(3, claim(1, rank=0))
    shelf.say(sw.StableSaid(lease=3))
    assert steps(shelf) == [(1, 4)]
    shelf.say(sw.StableSaid(lease=2))
    assert steps(shelf) == []


def test_a_late_word_of_the_slots_of_before_gives_up_none_of_those_that_came_after():
    shelf = DrivenShelf()
    for number, step in ((1, 4), (2, 6)):
        shelf.lease(number, claim(1))
        shelf.copy(number, 0, step)
    shelf.gone(2)
    shelf.say(sw.StableSaid(lease=1))
    assert steps(shelf) == [(1, 6)]


def test_slots_of_before_that_are_not_left_yet_go_as_soon_as_they_are():
    shelf = DrivenShelf()
    slots = shelf.lease(1, claim(1))
    shelf.copy(1, 0, 4)
    shelf.lease(2, claim(1))
    shelf.say(sw.StableSaid(lease=2))
    assert shelf.freed == []
    shelf.gone(1)
    assert set(shelf.freed) == set(slots)


def test_one_that_begins_anew_without_a_buddy_gives_up_what_it_had_with_one():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1, copied=True))
    shelf.copy(1, 0, 4)
    shelf.gone(1)
    shelf.lease(2, claim(1))
    shelf.copy(2, 0, 6)
    shelf.say(sw.StableSaid(lease=2))
    assert steps(shelf) == []


def sent(said):
    return [(do.number, do.step) for do in of_kind(said, sw.SendCopy)]


def test_copies_go_one_after_the_other_in_the_order_in_which_they_were_sealed():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1, copied=True))
    assert sent(shelf.copy(1, 0, 4)) == [(0, 4)]
    assert sent(shelf.copy(1, 1, 5)) == []
    assert sent(shelf.copy(1, 2, 6)) == []
    said = shelf.say(sw.CopyTaken(lease=1))
    assert words_to_rank(said) == ["SlotSafe"]
    assert sent(said) == [(1, 5)]
    assert sent(shelf.say(sw.CopyTaken(lease=1))) == [(2, 6)]
    assert sent(shelf.say(sw.CopyTaken(lease=1))) == []


def test_what_its_worker_copied_before_it_died_still_goes_to_the_buddy():
    """The sender's rank dies while one copy is on its way and one has not begun."""
    shelf = DrivenShelf()
    (_, second, _) = shelf.lease(1, claim(1, copied=True))
    shelf.copy(1, 0, 4)
    shelf.words[second] = SlotWord(state=SlotState.COPIED, step=5)
    said = shelf.gone(1)
    assert of_kind(said, sw.EndCopies) == []
    assert sent(shelf.say(sw.CopyTaken(lease=1))) == [(1, 5)]
    said = shelf.say(sw.CopyTaken(lease=1))
    assert words_to_rank(said) == []
    assert of_kind(said, sw.EndCopies) == [sw.EndCopies(lease=1)]


@pytest.mark.parametrize(("error", "told"), [("it is dead", ["LeftAlone"]), ("", [])])
def test_a_buddy_that_is_gone_is_told_and_one_whose_generation_is_over_is_not(error, told):
    """Of the buddy's death amid a copy nothing more is waited for."""
    shelf = DrivenShelf()
    shelf.lease(1, claim(1, copied=True))
    shelf.copy(1, 0, 4)
    shelf.copy(1, 1, 5)
    said = shelf.say(sw.CopiesRefused(lease=1, error=error))
    assert words_to_rank(said) == told
    assert of_kind(said, sw.EndCopies) == [sw.EndCopies(lease=1)]
    assert sent(shelf.copy(1, 2, 6)) == []
    assert shelf.say(sw.CopyTaken(lease=1)) == []
    shelf.gone(1)
    assert steps(shelf) == [(1, 4), (1, 5), (1, 6)]


def test_a_copy_that_its_sender_did_not_finish_is_nothing():
    shelf = DrivenShelf(slow=True)
    slots = shelf.lease(1, claim(1, guest=True))
    shelf.put(1, 0, 4)
    shelf.say(sw.HungUp(lease=1))
    assert steps(shelf) == []
    assert set(shelf.freed) == set(slots)
    assert of_kind(shelf.go_on(), sw.Prove) == []


def test_a_buddy_hears_that_a_generation_is_stable():
    shelf = DrivenShelf()
    shelf.lease(1, claim(1, copied=True))
    assert sw.SendStable(lease=1) in shelf.say(sw.StableSaid(lease=1))
    shelf.say(sw.CopiesRefused(lease=1, error="it is dead"))
    assert sw.SendStable(lease=1) not in shelf.say(sw.StableSaid(lease=1))


def test_room_that_comes_after_the_worker_has_gone_is_handed_back():
    shelf = DrivenShelf()
    shelf.machine.handle(sw.Claimed(lease=1, claim=claim(1)))
    shelf.say(sw.HungUp(lease=1))
    said = shelf.say(sw.RoomGiven(lease=1, slots=(1, 2, 3)))
    assert of_kind(said, sw.Grant) == []
    assert shelf.freed == [1, 2, 3]


def test_a_question_while_room_is_made_ends_the_claim():
    shelf = DrivenShelf()
    shelf.machine.handle(sw.Claimed(lease=1, claim=claim(1)))
    assert shelf.told(1) == []
    said = shelf.say(sw.RoomGiven(lease=1, slots=(1, 2, 3)))
    assert of_kind(said, sw.Grant) == []
    assert shelf.freed == [1, 2, 3]


def test_only_those_are_watched_whom_nobody_counts_on():
    """A worker that has not mapped its slots yet must not find them withdrawn."""
    shelf = DrivenShelf()
    for number, generation in ((1, 1), (2, 2), (3, 3)):
        shelf.lease(number, claim(generation))
    assert shelf.machine.watched() == []
    shelf.say(sw.HungUp(lease=2))
    assert shelf.machine.watched() == [2]
    shelf.told(1)
    assert shelf.machine.watched() == [1, 2]
    shelf.let_go(1)
    assert shelf.machine.watched() == [2]


def test_what_comes_for_a_lease_that_is_no_more_is_turned_away():
    shelf = DrivenShelf()
    for word, answer in (
        (sw.RoomGiven(lease=7, slots=(1, 2)), sw.FreeSlots(slots=(1, 2))),
        (sw.Rescued(lease=7, number=0, slot=3), sw.FreeSlots(slots=(3,))),
        (sw.HungUp(lease=7), sw.EndCopies(lease=7)),
        (sw.PutOffered(lease=7, number=0, step=4), sw.RefusePut(lease=7)),
        (sw.PutArrived(lease=7, number=0), sw.RefusePut(lease=7)),
    ):
        assert shelf.say(word) == [answer]
    assert shelf.say(sw.Rescued(lease=7, number=0, slot=None)) == []
    assert shelf.say(sw.CopyTaken(lease=7)) == []
