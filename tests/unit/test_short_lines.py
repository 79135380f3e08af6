"""Lines between the processes of one host: who gets in, what is told, and what ends them."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from remesh.parallel.doors.short_lines import MOST_NUMBERS, ShortLines
from remesh.parallel.plan.errors import GroupError


class Table:
    """Where ranks that are threads say something to all others; `known` are the names they told."""

    def __init__(self, size):
        self.size = size
        self.said = {}
        self.known = []
        self._meets = threading.Barrier(size)

    def gather(self, rank, message):
        self.said[rank] = message
        self._meets.wait()
        found = [self.said[one] for one in range(self.size)]
        if rank == 0:
            self.known.append(found)
        self._meets.wait()
        return found

    def form(self, pids=None, before=lambda _rank: None):
        def one(rank):
            def gather(message):
                found = self.gather(rank, message)
                before(rank)
                return found

            return ShortLines.form(gather, rank, pids or [os.getpid()] * self.size)

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(one, range(self.size)))


def close_all(lines):
    for one in lines:
        one.close()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_hears_what_all_say_in_the_order_of_the_ranks(size):
    lines = Table(size).form()
    with ThreadPoolExecutor(size) as threads:
        for turn in range(3):
            told = threads.map(lambda r, turn=turn: lines[r].told([r, -turn, 1 << 62]), range(size))
            assert list(told) == [[[r, -turn, 1 << 62] for r in range(size)]] * size
    close_all(lines)


def test_so_many_numbers_are_taken_in_though_nobody_reads():
    """Each writes before it reads: where a line was full, all would wait for each other."""
    one, other = Table(2).form()
    for line in one._lines.values():
        line.setblocking(False)
        for _ in range(2):
            line.sendall(bytes(8 * MOST_NUMBERS))
    close_all((one, other))


def test_without_the_process_that_is_meant_there_are_no_lines():
    assert Table(2).form(pids=[os.getpid(), 1]) == [None, None]


def test_a_stranger_who_comes_first_is_sent_away_and_the_others_are_let_in():
    table, came, is_there = Table(2), [], threading.Event()

    def stranger(rank):
        if rank == 1:
            assert is_there.wait(30)
        elif not came:
            found = socket.socket(socket.AF_UNIX)
            found.connect(b"\0remesh-" + table.known[0][0].hex().encode())
            found.sendall((7).to_bytes(8, "little"))  # no rank after this one
            came.append(found)
            is_there.set()

    lines = table.form(before=stranger)
    assert came[0].recv(1) == b""
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda one: one.told([5]), lines)) == [[[5], [5]]] * 2
    close_all(lines)
    came[0].close()


def test_who_waits_for_one_that_does_not_come_is_freed_by_what_it_looks_at():
    table = Table(2)

    def over():
        raise GroupError("the generation is over")

    def absent():
        """Takes part in the first round, and connects to nobody."""
        table.gather(1, bytes(16))

    thread = threading.Thread(target=absent)
    thread.start()
    with pytest.raises(GroupError, match="over"):
        ShortLines.form(lambda told: table.gather(0, told), 0, [os.getpid()] * 2, over)
    thread.join()


@pytest.mark.parametrize("end", ["end", "close"])
def test_who_waits_is_freed_by_the_end_of_either_side(end):
    for ending in (0, 1):
        lines = Table(2).form()
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(lines[0].told, [1])
            getattr(lines[ending], "end" if ending == 0 else end)()
            with pytest.raises(OSError):  # noqa: PT011 - of either kind
                waits.result(timeout=30)
        close_all(lines)


def test_a_line_that_has_ended_tells_nothing_any_more():
    one, other = Table(2).form()
    other.close()
    with pytest.raises(OSError):  # noqa: PT011 - of either kind
        one.told([1])
    one.close()
    one.end()
