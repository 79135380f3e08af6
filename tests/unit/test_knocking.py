"""Whose process is gone, by the word of the kernel: a connection that broke, and a refused one."""

import select
import socket
import time

import pytest
from waiting import soon

from remesh.actors.links.knocking import GIVEN_UP_TRIES, LATER_S, MOST_DROPS, Knocking
from remesh.parallel.doors.addresses import parted
from remesh.parallel.doors.silent_door import MOST_HELD, SilentDoor

HOST = "127.0.0.1"


class Knocked:
    """`news` says who refused; each is tried again until it was told `enough` times."""

    def __init__(self):
        self.news = []
        self.enough = 1
        self.knocking = Knocking(self._told)

    def until(self, true):
        def turned():
            self.knocking.turn(0.01)
            return true()

        assert soon(turned)

    def turns(self, count=20):
        for _ in range(count):
            self.knocking.turn(0.01)
        return self.news

    def visit(self, node="a"):
        return self.knocking._visits[node]

    def come_in(self, door):
        """And stand there for a while, as at any agent."""
        self.knocking.see("a", 1, door.address)
        self.until(lambda: self.visit().was_in)
        self.visit().came_s -= 60.0
        door.take()

    def _told(self, node, broken_s):
        self.news.append((node, broken_s))
        return len(self.news) < self.enough


@pytest.fixture
def knocked():
    knocked = Knocked()
    yield knocked
    knocked.knocking.close()


@pytest.fixture
def door():
    door = SilentDoor(HOST)
    yield door
    door.close()


def test_a_process_that_has_ended_is_known_by_its_door(knocked, door):
    knocked.come_in(door)
    assert knocked.turns() == []
    before_s = time.time()
    door.close()
    knocked.until(lambda: knocked.news)
    [(node, broken_s)] = knocked.news
    assert node == "a"
    in_order = [before_s, broken_s, time.time()]
    assert in_order == sorted(in_order)
    assert len(knocked.turns()) == 1


def test_who_is_still_to_be_tried_is_told_of_again_with_the_moment_of_the_break(knocked, door):
    knocked.enough = 3
    knocked.come_in(door)
    door.close()
    knocked.until(lambda: len(knocked.news) == 3)
    assert len(set(knocked.news)) == 1
    assert len(knocked.turns()) == 3


def test_a_connection_that_breaks_proves_nothing_while_a_new_one_is_taken(knocked, door):
    knocked.come_in(door)
    first = knocked.visit().line
    door._held.pop().close()
    knocked.until(lambda: knocked.visit().line not in (None, first))
    knocked.until(lambda: not knocked.visit().tries)
    assert knocked.turns() == []


def test_a_door_at_which_nobody_has_been_in_is_never_said_to_refuse(knocked, door):
    """Its address may be wrong from here."""
    address = door.address
    door.close()
    knocked.knocking.see("a", 1, address)
    knocked.until(lambda: knocked.visit().tries)
    assert knocked.news == []
    while not (visit := knocked.visit()).is_over:
        visit.due_s = 0.0
        knocked.turns(1)
    assert visit.tries == GIVEN_UP_TRIES
    assert knocked.news == []


def test_the_next_agent_of_a_node_has_a_door_of_its_own(knocked, door):
    knocked.come_in(door)
    other = SilentDoor(HOST)
    knocked.knocking.see("a", 2, other.address)
    knocked.until(lambda: knocked.visit().agent == 2)
    knocked.until(lambda: knocked.visit().was_in)
    door.close()
    assert knocked.turns() == []
    knocked.knocking.see("a", 1, door_address := "127.0.0.1:1")
    knocked.turns()
    assert knocked.visit().address != door_address
    other.close()


def dropped(knocked, door):
    """Whoever has come in is dropped at once."""
    visit = knocked.visit()
    knocked.until(lambda: visit.line is not None and not visit.tries)
    visit.came_s = time.monotonic()
    door.take()
    door._held.pop().close()
    knocked.until(lambda: visit.line is None)


def test_a_process_that_takes_one_more_with_its_last_breath_is_known_all_the_same(knocked, door):
    knocked.come_in(door)
    door._held.pop().close()
    knocked.until(lambda: knocked.visit().line is None)
    broken_s = knocked.visit().broken_s
    dropped(knocked, door)
    assert knocked.news == []
    door.close()
    knocked.until(lambda: knocked.news)
    assert knocked.news == [("a", broken_s)]


def test_the_moment_of_a_break_is_known_of_a_connection_that_never_stood_long(knocked, door):
    before_s = time.time()
    knocked.knocking.see("a", 1, door.address)
    knocked.until(lambda: knocked.visit().was_in)
    dropped(knocked, door)
    door.close()
    knocked.until(lambda: knocked.news)
    [(_, broken_s)] = knocked.news
    in_order = [before_s, broken_s, time.time()]
    assert in_order == sorted(in_order)


def test_one_that_drops_whoever_comes_is_not_asked_at_once_for_ever(knocked, door):
    knocked.come_in(door)
    for _ in range(MOST_DROPS):
        dropped(knocked, door)
    knocked.turns()
    assert knocked.visit().tries == 0
    later_s = knocked.visit().came_s + LATER_S
    assert max(knocked.visit().due_s, later_s) == knocked.visit().due_s


def test_a_door_takes_nothing_in_and_holds_few(door):
    visitors = []
    for _ in range(MOST_HELD + 3):
        visitor = socket.create_connection(parted(door.address))
        visitor.sendall(b"let me in")
        select.select([door], [], [])
        door.take()
        visitors.append(visitor)
    assert len(door._held) == MOST_HELD
    assert soon(lambda: all(_is_over(visitor) for visitor in visitors[:3]))
    assert not any(_is_over(visitor) for visitor in visitors[3:])
    for visitor in visitors:
        visitor.close()
    door.take()


def _is_over(visitor):
    readable, _, _ = select.select([visitor], [], [], 0)
    return bool(readable)
