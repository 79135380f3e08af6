"""Orders that are lost, come twice, or come from a controller that has been frozen meanwhile."""

from collections import deque
from dataclasses import replace
from random import Random

import pytest

from remesh.actors.agent.outbox import Outbox
from remesh.actors.agent.words import EndRank, NodeAnswer, NodeOrders
from remesh.actors.links.links import AgentHearer, Links
from remesh.actors.links.unheard import PATIENCE_BEATS
from remesh.actors.node.offers import Room
from remesh.orchestrator.control.words.events import VaultLost

ROOM = Room(node_id="id", slots=2)


def order(number):
    return EndRank(worker=f"worker-{number}")


class Wire:
    """An agent behind a wire that loses some messages and doubles others, as `fate` says."""

    def __init__(self, fate=lambda: 1):
        self.fate = fate
        self.obeyed = []
        self.num_sent = 0
        self.box = Outbox("a", 1)

    def when_over(self, tell):
        self.tell = tell

    def take(self, orders, newer):
        self.num_sent += 1
        for _ in range(self.fate()):
            if self.box.takes(orders):
                self.obeyed += orders.orders
            if self.box.incarnation > orders.incarnation:
                newer(self.box.incarnation)

    def word(self):
        return self.box.word(empty=False, stood_still_s=0.0)


class Side:
    """A controller of this incarnation, which sends orders to the agent."""

    def __init__(self, wire, incarnation):
        self.wire = wire
        self.incarnation = incarnation
        self.newer = []
        hearer = AgentHearer(begins=pytest.fail, over=pytest.fail, newer=self.newer.append)
        self.links = Links(self, incarnation, hearer)
        self.links.adopt()
        self.links.turn()

    def found(self):
        return {"a": [self.wire]}

    def start(self, node, room):  # noqa: ARG002 - as Agents has it
        pytest.fail("it is there")

    def give(self, *numbers):
        for number in numbers:
            self.links.give("a", order(number))
            self.links.send()
        self.links.turn()

    def hear(self, word=None):
        self.links.hear(word or self.wire.word())
        self.links.turn()


def numbers(wire):
    return [int(one.worker.partition("-")[2]) for one in wire.obeyed]


def test_what_was_lost_is_sent_again_after_some_beats_with_all_that_came_after_it():
    fates = deque([1, 0, 1])
    wire = Wire(lambda: fates.popleft() if fates else 1)
    side = Side(wire, 7)
    side.give(1, 2, 3)
    assert numbers(wire) == [1]
    for _ in range(PATIENCE_BEATS - 1):
        side.hear()
    assert (numbers(wire), wire.num_sent) == ([1], 3)
    side.hear()
    assert (numbers(wire), wire.num_sent) == ([1, 2, 3], 5)
    for _ in range(3 * PATIENCE_BEATS):
        side.hear()
    assert wire.num_sent == 5


def test_a_word_with_news_is_no_beat():
    """They follow each other at once, while the orders are on their way."""
    wire = Wire(lambda: 0)
    side = Side(wire, 7)
    side.give(1)
    wire.box.obeys(7)
    wire.box.put(VaultLost(node="a"))
    for _ in range(3 * PATIENCE_BEATS):
        side.hear()
    assert wire.num_sent == 1


def test_orders_that_come_twice_or_late_are_obeyed_once():
    wire = Wire(lambda: 2)
    side = Side(wire, 7)
    side.give(1, 2)
    late = NodeOrders(incarnation=7, number=1, orders=(order(1),))
    wire.take(late, side.newer.append)
    assert numbers(wire) == [1, 2]
    assert side.newer == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_or_doubled_all_are_obeyed_in_their_order(seed):
    chance = Random(seed)
    wire = Wire(lambda: chance.choice([0, 0, 1, 2]))
    side = Side(wire, 7)
    old = wire.word()
    for number in range(30):
        side.give(number)
        side.hear(chance.choice([None, None, old]))
    wire.fate = lambda: 1
    for _ in range(PATIENCE_BEATS):
        side.hear()
    assert numbers(wire) == list(range(30))


def test_of_an_agent_that_has_heard_a_controller_before_nothing_is_taken_as_heard():
    wire = Wire(lambda: 0)
    before = Side(Wire(), 6)
    before.wire.box = wire.box
    before.give(1, 2, 3)
    side = Side(wire, 7)
    side.give(4)
    wire.fate = lambda: 1
    for _ in range(PATIENCE_BEATS):
        side.hear()
    assert numbers(wire) == [4]


def test_a_controller_that_was_frozen_and_goes_on_is_not_obeyed_and_hears_of_the_newer_one():
    """Its messages were on their way, or in its queue, while another took over."""
    wire = Wire()
    old = Side(wire, 7)
    old.give(1)
    new = Side(wire, 8)
    new.give(2)
    old.give(3)
    assert numbers(wire) == [1, 2]
    assert old.newer == [8]
    assert new.newer == []
    for _ in range(PATIENCE_BEATS):
        old.hear()
    assert numbers(wire) == [1, 2]
    answer = NodeAnswer(incarnation=7, heard=0, num_nodes=1, leased=True)
    assert not wire.box.hear(answer)
    assert wire.box.hear(replace(answer, incarnation=8))
    new.give(4)
    assert numbers(wire) == [1, 2, 4]
