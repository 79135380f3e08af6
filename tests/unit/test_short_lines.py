"""Lines between the processes of one host: who gets in, what is told, and what ends them."""

import fcntl
import gc
import os
import signal
import socket
import termios
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import soon

from remesh.parallel.doors.short_lines import MOST_NUMBERS, ShortLines, _is_roomy, _listener
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


def test_a_line_is_asked_for_its_room_and_one_that_has_less_is_none():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    assert _is_roomy(ours)
    ours.setblocking(False)
    for _ in range(2):
        assert ours.send(bytes(8 * MOST_NUMBERS)) == 8 * MOST_NUMBERS
    assert not _is_roomy(Narrow())
    for end in (ours, theirs):
        end.close()


class Narrow:
    """A line of a system that gives each as much as a page."""

    def setsockopt(self, *_asked):
        pass

    def getsockopt(self, *_asked):
        return 1 << 12


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


@pytest.mark.parametrize("of_another", [bytes(24), (1).to_bytes(8, "little") + bytes(16)])
def test_where_one_has_no_name_or_another_network_nobody_waits_for_anybody(of_another):
    table, looked = Table(2), []
    thread = threading.Thread(target=table.gather, args=(1, of_another))
    thread.start()

    def gather(message):
        return table.gather(0, message)

    found = ShortLines.form(gather, 0, [os.getpid()] * 2, lambda: looked.append(True))
    thread.join()
    assert (found, looked) == (None, [])


def test_what_was_formed_is_closed_if_the_others_are_not_heard_any_more():
    gc.collect()
    table, before = Table(2), num_sockets()

    def one(rank):
        def gather(message):
            if len(message) == 1:
                raise GroupError("the generation is over")
            return table.gather(rank, message)

        with pytest.raises(GroupError) as caught:
            ShortLines.form(gather, rank, [os.getpid()] * 2)
        return caught  # with a traceback, which holds what it has passed

    with ThreadPoolExecutor(2) as threads:
        caught = list(threads.map(one, range(2)))
    assert num_sockets() <= before  # those of other tests may go meanwhile
    assert len(caught) == 2


def num_sockets():
    found = 0
    for place in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found += str(place.readlink()).startswith("socket:")
    return found


def test_a_signal_amid_a_message_ends_no_line():
    """It cuts short what the kernel has received by then, which is no end of who says it."""
    one, other = Table(2).form()
    (line,) = other._lines.values()
    came = []
    earlier = signal.signal(signal.SIGUSR1, lambda *_: came.append(True))

    def say_with_a_break():
        line.sendall(bytes(8))
        soon(lambda: not unread(line))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        soon(lambda: came)
        line.sendall((5).to_bytes(8, "little"))

    thread = threading.Thread(target=say_with_a_break)
    thread.start()
    try:
        assert one.told([1, 2]) == [[1, 2], [0, 5]]
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, earlier)
        close_all((one, other))


def unread(line):
    """Bytes that were said and that nobody has received yet."""
    found = array("i", [0])
    fcntl.ioctl(line, termios.TIOCOUTQ, found)
    return found[0]


class Slow:
    """A line whose number is another's once it is closed; who ends it takes a moment."""

    def __init__(self):
        self.said = []
        self.ends = threading.Event()
        self.goes_on = threading.Event()

    def shutdown(self, _how):
        self.said.append("ends")
        self.ends.set()
        self.goes_on.wait(30)
        self.said.append("has ended")

    def close(self):
        self.said.append("closes")


def test_no_line_is_closed_while_another_thread_ends_it():
    line = Slow()
    lines = ShortLines(0, {1: line})
    ends = threading.Thread(target=lines.end)
    ends.start()
    assert line.ends.wait(30)
    closes = threading.Thread(target=lines.close)
    closes.start()
    closes.join(0.05)
    line.goes_on.set()
    for thread in (ends, closes):
        thread.join()
    assert line.said == ["ends", "has ended", "ends", "has ended", "closes"]


def test_who_waits_for_one_that_does_not_come_is_freed_by_what_it_looks_at():
    table = Table(2)

    def over():
        raise GroupError("the generation is over")

    def absent():
        """Takes part in the first round, and connects to nobody."""
        listener, name = _listener(1)
        table.gather(1, name)
        listener.close()

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
