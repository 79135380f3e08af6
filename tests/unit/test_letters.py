"""Beats that come as letters: sealed, answered at once, counted once, and given up in good time."""

import select
import threading

import pytest
from waiting import soon

from remesh.actors.agent.words import (
    NodeAnswer,
    NodeWord,
    answer_bytes,
    answer_of,
    beat_bytes,
    beat_of,
)
from remesh.orchestrator.control.words.events import VaultLost
from remesh.parallel.doors.letters import DISTRUSTED, LetterBox, LetterWriter

HOST = "127.0.0.1"
SECRET = "known to both"


class Post:
    """A box that answers each letter with what it says, turned round, and one who writes to it."""

    def __init__(self, secret=SECRET):
        self.heard = []
        self.box = LetterBox(HOST, SECRET, self._hear)
        self.writer = LetterWriter(HOST, secret, 7)
        self.writer.is_told(self.box.address)

    def _hear(self, body):
        self.heard.append(body)
        return body[::-1]

    def answer(self):
        found = []
        soon(lambda: found.append(self.writer.answer()) or found[-1] is not None)
        return found[-1]

    def close(self):
        self.writer.close()
        self.box.close()


@pytest.fixture
def post():
    made = Post()
    yield made
    made.close()


def test_a_letter_is_heard_once_and_answered(post):
    assert post.writer.write(b"beat")
    post.box.turn()
    assert (post.answer(), post.heard) == (b"taeb", [b"beat"])
    assert post.writer.answer() is None


def test_a_letter_that_comes_twice_or_after_a_newer_one_is_not_heard_again(post):
    sent = []
    own = post.writer._socket

    class Copying:
        def sendto(self, data, where):
            sent.append((data, where))
            own.sendto(data, where)

    post.writer._socket = Copying()
    for body in (b"first", b"second"):
        post.writer.write(body)
        post.writer.forget()
        post.box.turn()
    for data, where in sent:
        own.sendto(data, where)
        post.box.turn()
    post.writer._socket = own
    assert post.heard == [b"first", b"second"]


def test_who_does_not_know_the_secret_is_not_heard():
    post = Post(secret="another")
    post.writer.write(b"beat")
    post.box.turn()
    post.writer._socket.sendto(b"", post.box._socket.getsockname())
    post.box.turn()
    assert post.heard == []
    post.close()


def test_a_box_reads_no_letter_to_one_before_it_that_had_its_port(post):
    """Who has listened could have a dead node beat on for the controller that follows."""
    where, _, name = post.box.address.partition("/")
    assert name not in ("", LetterBox(HOST, SECRET, post._hear).address.partition("/")[2])
    post.writer.is_told(f"{where}/{name[::-1]}")
    post.writer.write(b"beat")
    post.box.turn()
    assert post.heard == []


def test_what_is_said_is_no_answer_to_whoever_said_it(post):
    """Sent back to where it came from, a letter proves nothing."""
    post.box._socket.close()
    echo = post.box._socket = LetterWriter(HOST, SECRET, 9)._socket
    host, port = echo.getsockname()
    post.writer.is_told(f"{host}:{port}/name")
    post.writer.write(b"beat")
    got = []
    assert soon(lambda: _received(echo, got))
    echo.sendto(*got[0])
    assert select.select([post.writer], [], [], 10.0)[0]
    assert post.writer.answer() is None


def _received(found, got):
    try:
        got.append(found.recvfrom(4096))
    except BlockingIOError:
        return False
    return True


def test_an_answer_to_a_letter_before_the_newest_counts_for_nothing(post):
    post.writer.write(b"first")
    post.box.turn()
    post.writer.forget()
    post.writer.write(b"second")
    assert post.writer.answer() is None
    post.box.turn()
    assert post.answer() == b"dnoces"


def test_after_one_without_an_answer_no_letter_is_written_for_a_while(post):
    assert post.writer.write(b"lost")
    refused = [post.writer.write(b"beat") for _ in range(DISTRUSTED)]
    assert not any(refused)
    assert post.writer.write(b"again")


def test_a_letter_that_is_followed_by_a_call_is_not_held_against_anybody(post):
    post.writer.write(b"beat")
    post.writer.forget()
    assert post.writer.write(b"beat")


def test_another_address_is_trusted_at_once(post):
    post.writer.write(b"lost")
    assert not post.writer.write(b"beat")
    other = LetterBox(HOST, SECRET, post._hear)
    post.writer.is_told(other.address)
    assert post.writer.write(b"beat")
    other.close()


def test_nothing_is_written_to_nobody():
    writer = LetterWriter(HOST, SECRET, 7)
    assert not writer.write(b"beat")
    writer.close()


def test_a_box_reads_on_after_one_whose_letter_could_not_be_heard():
    heard = []

    def hear(body):
        if body == b"bad":
            raise OSError
        if body == b"worse":
            beat_of(body)
        heard.append(body)
        return body

    box, writer = LetterBox(HOST, SECRET, hear), LetterWriter(HOST, SECRET, 7)
    box.start()
    writer.is_told(box.address)
    for body in (b"bad", b"worse", b"good"):
        writer.write(body)
        writer.forget()
    assert soon(lambda: heard == [b"good"])
    assert "remesh letters" in [thread.name for thread in threading.enumerate()]
    writer.close()


def test_a_beat_and_its_answer_are_the_same_as_a_letter():
    word = NodeWord(
        node="n",
        agent=2**62,
        first=5,
        events=(),
        incarnation=3,
        heard=4,
        empty=True,
        stood_still_s=0.25,
        door="127.0.0.1:9",
    )
    assert beat_of(beat_bytes(word)) == word
    answer = NodeAnswer(incarnation=3, heard=4, num_nodes=2, leased=True, clear=True, letters="h:1")
    assert answer_of(answer_bytes(answer)) == answer


@pytest.mark.parametrize("body", [b"no json", b"\xff", b"5", b"[]", b"{}", b'{"node": "n"}'])
def test_what_another_remesh_writes_is_no_beat(body):
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        beat_of(body)


def test_news_is_no_beat():
    word = NodeWord(node="n", agent=1, first=1, events=(VaultLost(node="n"),), incarnation=1)
    with pytest.raises(AssertionError):
        beat_bytes(word)
