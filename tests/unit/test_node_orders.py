"""Orders to agents: one message a node and turn, in order, to the agent that is there."""

import pytest

from remesh.actors.agent.words import EndNode, EndRank, NodeOrders, StartRank
from remesh.actors.links.links import AgentHearer, Links
from remesh.actors.node.offers import Room

ROOM = Room(node_id="id", slots=2)


class FakeAgent:
    def __init__(self, node):
        self.node = node
        self.took = []
        self.killed = False
        self.stack = None
        self.tell = None
        self.obeys = 0

    def when_over(self, tell):
        self.tell = tell

    def take(self, orders, newer):
        if self.obeys > orders.incarnation:
            newer(self.obeys)
        else:
            self.took.append(orders)

    def stacks(self, workers, limit_s):
        assert limit_s > 0
        if self.stack is None:
            raise RuntimeError("no answer")
        return dict.fromkeys(workers, self.stack)

    def kill(self):
        self.killed = True

    def end(self, how="died"):
        self.tell(how)


class Town:
    """Agents as Ray would start them: `arrive` is when it has."""

    def __init__(self, found=None):
        self.made = []
        self.heard = []
        self.there = found or {}
        hearer = AgentHearer(
            begins=lambda node: self.heard.append(("begins", node)),
            over=lambda node, cause: self.heard.append((cause, node)),
            newer=lambda incarnation: self.heard.append(("newer", incarnation)),
        )
        self.links = Links(self, 7, hearer)

    def start(self, node, room):
        assert room == ROOM
        self.made.append(FakeAgent(node))
        return self.made[-1]

    def found(self):
        return self.there

    def arrive(self):
        self.links.turn()
        self.links.start_one()
        self.links.turn()
        return self.made[-1]

    def used(self, node):
        self.links.start(node, ROOM)
        return self.arrive()

    def give(self, node, *orders):
        for order in orders:
            self.links.give(node, order)
        self.links.send()
        self.links.turn()


@pytest.fixture
def town():
    return Town()


def ranks(*numbers):
    return tuple(StartRank(worker=f"worker-{number}") for number in numbers)


def test_all_orders_of_a_turn_go_to_a_node_in_one_message(town):
    agent, other = town.used("a"), town.used("b")
    for node, order in zip("abab", ranks(1, 2, 3, 4), strict=True):
        town.links.give(node, order)
    town.links.send()
    town.links.send()
    town.links.turn()
    assert agent.took == [NodeOrders(incarnation=7, number=1, orders=ranks(1, 3))]
    assert other.took == [NodeOrders(incarnation=7, number=1, orders=ranks(2, 4))]


def test_two_thousand_nodes_get_a_message_each(town):
    agents = [town.used(f"node-{number}") for number in range(2048)]
    for number in range(2048):
        for _ in range(3):
            town.links.give(f"node-{number}", ranks(number)[0])
    town.links.send()
    town.links.turn()
    assert [len(agent.took) for agent in agents] == [1] * 2048


def test_orders_for_an_agent_that_is_about_to_be_there_wait_for_it_in_order(town):
    town.links.start("a", ROOM)
    town.links.start("a", ROOM)
    town.give("a", *ranks(1))
    town.give("a", *ranks(2))
    agent = town.arrive()
    assert town.heard == [("begins", "a")]
    assert agent.took == [NodeOrders(incarnation=7, number=1, orders=ranks(1, 2))]
    town.give("nowhere", *ranks(3))
    assert len(town.made) == 1


def test_an_agent_whose_life_is_over_is_forgotten_and_another_can_start(town):
    """control A5: agents that had ended by their lease were never started again."""
    first = town.used("a")
    first.end("died")
    town.links.turn()
    second = town.used("a")
    town.give("a", *ranks(1))
    assert (first.took, len(second.took)) == ([], 1)
    assert town.heard == [("begins", "a"), ("died", "a"), ("begins", "a")]


def test_who_follows_one_that_leaves_starts_once_that_is_gone(town):
    """control A16: nobody waits for it meanwhile."""
    first = town.used("a")
    town.links.release("a")
    town.links.release("a")
    town.links.start("a", ROOM)
    town.give("a", *ranks(1))
    assert [orders.orders for orders in first.took] == [(EndNode(),)]
    assert len(town.made) == 1
    first.end("ended")
    second = town.arrive()
    assert [orders.orders for orders in second.took] == [ranks(1)]
    assert town.heard == [("begins", "a"), ("begins", "a"), ("ended", "a")]


def test_each_that_begins_is_over_once_though_it_is_not_needed_any_more(town):
    first = town.used("a")
    town.links.release("a")
    town.links.start("a", ROOM)
    town.links.release("a")
    first.end("ended")
    town.links.turn()
    assert len(town.made) == 1
    assert [what for what, _ in town.heard].count("begins") == len(town.heard) / 2


def test_one_that_is_to_end_before_it_is_there_is_told_as_it_comes(town):
    town.links.start("a", ROOM)
    town.links.kill("a")
    agent = town.arrive()
    assert [orders.orders for orders in agent.took] == [(EndNode(),)]
    late = town.used("b")
    town.links.kill("b")
    town.links.turn()
    assert late.killed


def test_the_agents_of_a_controller_before_are_taken_over_the_newest_of_each_node():
    old, new, other = FakeAgent("a"), FakeAgent("a"), FakeAgent("b")
    town = Town({"a": [old, new], "b": [other]})
    assert town.links.adopt() == {"a", "b"}
    town.links.turn()
    assert (old.killed, new.killed) == (True, False)
    town.give("a", EndRank(worker="worker-1"))
    assert [orders.orders for orders in new.took] == [(EndRank(worker="worker-1"),)]
    assert town.heard == []
    other.end("died")
    town.links.turn()
    assert town.heard == [("died", "b")]


def test_at_the_end_all_are_told_and_none_starts_any_more(town):
    agent = town.used("a")
    town.links.end(0.0)
    town.links.start("b", ROOM)
    town.links.turn()
    assert [orders.orders for orders in agent.took] == [(EndNode(),)]
    assert agent.killed
    assert len(town.made) == 1


def test_stacks_are_those_of_the_agents_that_answer(town):
    agents = [town.used(node) for node in "ab"]
    agents[0].stack = "at line 1"
    asked = {"a": ["worker-1"], "b": ["worker-2"], "c": ["worker-3"]}
    assert town.links.stacks(asked, 1.0) == {"worker-1": "at line 1"}


def test_a_controller_that_stood_still_hears_by_its_first_order_that_another_has_the_run(town):
    """control A16: its orders could fence, form and kill in the live run."""
    agent = town.used("a")
    agent.obeys = 8
    town.give("a", EndRank(worker="worker-1"))
    assert agent.took == []
    assert town.heard[-1] == ("newer", 8)
