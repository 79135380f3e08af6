"""What an agent tells a controller that dies, answers twice or not at all, and whom it obeys."""

from remesh.actors.agent.outbox import Outbox
from remesh.actors.agent.words import NodeAnswer
from remesh.orchestrator.control.words.events import VaultLost

ONE, TWO, THREE = (VaultLost(node=name) for name in ("one", "two", "three"))


def outbox(*events):
    found = Outbox("node", 7)
    found.obeys(1)
    for event in events:
        found.put(event)
    return found


def word(box):
    return box.word(empty=False, stood_still_s=0.0)


def answer(heard, incarnation=1):
    return NodeAnswer(incarnation=incarnation, heard=heard, num_nodes=1, leased=True)


def test_events_are_counted_from_one_and_told_until_they_are_in_the_journal():
    box = outbox(ONE, TWO)
    first = word(box)
    assert (first.node, first.agent, first.first, first.events) == ("node", 7, 1, (ONE, TWO))
    assert box.hear(answer(1))
    assert (word(box).first, word(box).events) == (2, (TWO,))


def test_an_answer_that_comes_twice_or_late_changes_nothing():
    box = outbox(ONE, TWO, THREE)
    word(box)
    for heard in (2, 2, 1, 0):
        assert box.hear(answer(heard))
    assert (word(box).first, word(box).events) == (3, (THREE,))


def test_what_a_lost_answer_was_about_is_told_again():
    box = outbox(ONE)
    assert word(box) == word(box)


def test_nothing_is_news_twice():
    box = outbox(ONE)
    assert box.has_news
    word(box)
    assert not box.has_news
    box.put(TWO)
    assert box.has_news
    box.hear(answer(1))
    assert box.has_news
    word(box)
    box.hear(answer(2))
    assert not box.has_news


def test_a_controller_that_is_back_is_told_what_the_one_before_had_not_written():
    box = outbox(ONE, TWO)
    word(box)
    assert box.hear(answer(1, incarnation=2))
    assert (word(box).incarnation, word(box).events) == (2, (TWO,))


def test_orders_and_answers_of_a_controller_before_the_newest_do_not_count():
    box = outbox(ONE)
    assert box.obeys(3)
    assert not box.obeys(2)
    word(box)
    assert not box.hear(answer(1, incarnation=2))
    assert word(box).events == (ONE,)
    assert box.obeys(3)
