"""How vaults and workers talk: every word as it is, and nothing that is none."""

import json
import socket
from contextlib import closing
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_codec import drawn, quietly
from waiting import PATIENCE_S

from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.messages import (
    KeepCopies,
    Message,
    PutCopy,
    ReadHeader,
)
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.actors.vault.wire import HELLO, MAX_MESSAGE_BYTES, Line, VaultError
from remesh.orchestrator.control.words import codec
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.vault.vault_words import (
    LeaseSlots,
    NowStable,
    Refused,
    SealSlot,
    SlotsLeased,
)
from remesh.parallel.doors.addresses import parted
from remesh.parallel.doors.keyed_hello import SEAL_BYTES, Seal, Session, StrangerError, greet
from remesh.parallel.plan.cut import held_by
from remesh.parallel.plan.layout import Layout

TOKEN = "0123456789abcdef" * 2
HELD = held_by(Layout(dp=4, tp=2), 2, 5)
LEASE = LeaseSlots(generation=1, held=HELD, size_bytes=5000, from_step=0, buddy="")


@pytest.fixture
def ends():
    """A line and the plain socket at its other end."""
    near, far = socket.socketpair()
    line = Line.__new__(Line)
    line._connection, line._limit_s, line._early = near, PATIENCE_S, b""
    line._session = Session(said=Seal(b"k"), heard=Seal(b"k"))
    with closing(near), closing(far):
        yield line, Far(far)


class Far:
    """The other end: a plain socket that seals what it says."""

    def __init__(self, connection):
        self.connection, self.seal = connection, Seal(b"k")

    def say(self, text):
        framed = len(text).to_bytes(4, "big") + text
        self.connection.sendall(framed + self.seal.next(framed))


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@quietly(5)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind, data):
    message = data.draw(drawn(kind))
    told = json.loads(json.dumps(codec.encode(Message, message)))
    assert codec.decode(Message, told) == message


def test_a_message_travels_with_its_bytes(ends):
    line, far = ends
    line.send(LEASE, b"abc")
    text = far.connection.recv(4096)
    assert text[:-SEAL_BYTES].endswith(b"abc")
    far.connection.sendall(text)
    assert line.receive(PATIENCE_S) == LEASE
    assert line.receive_bytes(3) == b"abc"


def test_a_line_ends_at_what_is_no_message(ends):
    line, far = ends
    far.connection.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(VaultError):
        line.receive(PATIENCE_S)
    for text in (b"[1]", b"{", b"[" * 60000, b"{}", b'{"is":"NowStable","more":1}'):
        far.say(text)
        with pytest.raises(VaultError):
            line.receive(PATIENCE_S)
    far.connection.sendall(b"\0\0")
    line._limit_s = 0.2
    with pytest.raises(TimeoutError):
        line.receive(PATIENCE_S)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", -1), ("rank", True), ("rank", 2**53), ("rank", "5"), ("layout", [1, 2])],
)
def test_a_part_of_the_state_that_is_none_is_no_message(ends, field, value):
    line, far = ends
    told = codec.encode(Message, LEASE)
    told["held"][field] = value
    far.say(json.dumps(told).encode())
    with pytest.raises(VaultError, match="no message"):
        line.receive(PATIENCE_S)


def test_numbers_that_count_nothing_are_no_message(ends):
    line, far = ends
    for wrong in ({"slot": -1}, {"slot": 2**53}):
        far.say(json.dumps({"is": "SealSlot", **wrong}).encode())
        with pytest.raises(VaultError, match="is no count"):
            line.receive(PATIENCE_S)


@pytest.fixture
def vault(tmp_path):
    memory = VaultMemory(tmp_path / "vault")
    memory.open()
    timers = Timers(patience_s=PATIENCE_S)
    server = VaultServer.open("127.0.0.1", KeptShelf(memory), token=TOKEN, timers=timers)
    yield server
    server.close()
    memory.close()


def test_a_vault_refuses_who_talks_in_another_format_and_says_both(vault):
    connection = socket.create_connection(parted(vault.address), timeout=PATIENCE_S)
    session = greet(connection, TOKEN.encode())
    with closing(Line(connection, session, PATIENCE_S)) as line:
        line.send_bytes(HELLO.pack(7))
        with pytest.raises(VaultError, match="in format 3, and this one was addressed in format 7"):
            line.ask(LEASE, PATIENCE_S)
        with pytest.raises(EOFError):
            line.receive(PATIENCE_S)


def test_a_vault_says_nothing_to_who_has_not_the_token(vault):
    with pytest.raises(StrangerError):
        Line.open(vault.address, TOKEN[::-1], PATIENCE_S)


@pytest.mark.parametrize("message", [NowStable(), SealSlot(slot=0), Refused(error="no")])
def test_a_word_out_of_place_ends_the_connection(vault, message):
    line = Line.open(vault.address, TOKEN, PATIENCE_S)
    with closing(line), pytest.raises(VaultError, match="ended the connection"):
        line.ask(message, PATIENCE_S)


def test_a_slot_that_is_not_leased_ends_the_connection(vault):
    keep = KeepCopies(generation=1, held=HELD, size_bytes=5000, from_step=0, slots=2)
    for first, word in ((LEASE, SealSlot(slot=3)), (keep, PutCopy(slot=3, step=1, digest=""))):
        with closing(Line.open(vault.address, TOKEN, PATIENCE_S)) as line:
            line.ask(first, PATIENCE_S)
            with pytest.raises(VaultError, match="ended the connection"):
                line.ask(word, PATIENCE_S)


def test_a_vault_answers_in_the_same_words(vault):
    with closing(Line.open(vault.address, TOKEN, PATIENCE_S)) as line:
        with pytest.raises(VaultError, match="no snapshot of generation 1 at step 9"):
            line.ask(ReadHeader(generation=1, step=9, held=HELD), PATIENCE_S)
        leased = line.ask(LEASE, PATIENCE_S)
        assert isinstance(leased, SlotsLeased)
        assert len(leased.paths) == 3
