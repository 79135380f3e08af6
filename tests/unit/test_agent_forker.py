"""What an agent asks of a warm process that is busy."""

import socket
import sys

from remesh.actors.agent.fork_words import Warm, heard_word, say
from remesh.actors.agent.forker import MOST_FAILURES, Forker
from remesh.actors.node.seats import VaultSeat

SEAT = VaultSeat(node="n", node_ip="", incarnation=1)


class Asked(Forker):
    """Without a process: the test answers."""

    def start(self):
        self._line, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
        self._line.setblocking(False)
        self.theirs.setblocking(False)

    def ask_for(self, number):
        ours, theirs = socket.socketpair()
        assert self.ask(number, SEAT, theirs) is None
        return ours

    def arrived(self):
        found = []
        try:
            while True:
                word, (end,) = heard_word(self.theirs)
                socket.socket(fileno=end).close()
                found.append(word.number)
        except BlockingIOError:
            return found


def test_nothing_is_asked_before_it_is_warm_and_nothing_is_lost_while_it_is_busy():
    forker = Asked(sys.version, {})
    forker.start()
    ends = [forker.ask_for(number) for number in range(100)]
    assert forker.arrived() == []
    say(forker.theirs, Warm())
    assert forker.news(tuple) == []
    found = forker.arrived()
    assert 0 < len(found) < 100
    while len(found) < 100:
        forker.look()
        news = forker.arrived()
        assert news
        found += news
    assert found == list(range(100))
    assert [end.recv(1) for end in ends] == [b""] * 100  # nobody keeps an end


def test_what_could_not_be_asked_is_to_be_asked_again():
    forker = Asked(sys.version, {})
    forker.start()
    end = forker.ask_for(7)
    first = forker.theirs
    forker._warm = Killed()
    first.close()
    forker._failures = MOST_FAILURES  # none follows
    assert [news.number for news in forker.news(tuple)] == [7]
    assert end.recv(1) == b""


class Killed:
    """A process that is gone."""

    pid = 0

    def kill(self):
        pass

    def poll(self):
        return 0
