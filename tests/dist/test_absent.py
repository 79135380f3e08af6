"""Whom a rank names that waits in vain while a group forms (control A15)."""

import socket

import pytest
from process_pool import HOST

from remesh.parallel.groups.absent import Attendance, unanswered
from remesh.parallel.plan.errors import GroupError

SILENT = ("192.0.2.1", 9)  # of an address that nobody has (RFC 5737)


def test_who_listens_answers_and_so_does_who_has_left():
    with socket.create_server((HOST, 0)) as there, socket.create_server((HOST, 0)) as other:
        left = other.getsockname()[:2]
        other.close()
        assert unanswered({0: there.getsockname()[:2], 1: left}) == []


def test_who_does_not_answer_at_all_is_named():
    """A queue of connections that is full answers no more, as a network that is cut."""
    with (
        socket.create_server((HOST, 0), backlog=0) as full,
        socket.create_server((HOST, 0)) as there,
    ):
        address = full.getsockname()[:2]
        kept = [socket.socket() for _ in range(8)]
        for one in kept:
            one.setblocking(False)
            one.connect_ex(address)
        try:
            assert unanswered({3: address, 4: there.getsockname()[:2]}) == [3]
        finally:
            for one in kept:
                one.close()


def test_who_has_not_come_is_named_before_anybody_is_asked():
    attendance = Attendance(rank=1, size=4, there={2: SILENT})
    assert attendance.waited_for() == (3, 0)


def test_of_thousands_those_are_asked_that_follow():
    assert list(Attendance(rank=2, size=4).others) == [3, 0, 1]


def form_without_the_last(seat):
    """What the ranks name that wait for one that never comes."""
    if seat.rank == seat.size - 1:
        return None
    seat.say("here")
    for other in range(seat.size - 1):
        seat.hear("here", of=other)
    with pytest.raises(GroupError) as failed:
        seat.form(form_timeout_s=4.0)  # in which those who are here find each other
    return failed.value.waited_for


def test_ranks_name_the_one_that_never_comes(pool):
    assert pool.run(form_without_the_last, 3) == [(2,), (2,), None]
