"""The door at which connections wait until they are heard: bounded, and fair to a crowd."""

import errno
import socket
import threading

import pytest
from waiting import NEVER_S, PATIENCE_S, soon

from remesh.parallel.doors.addresses import joined, listen, parted
from remesh.parallel.doors.doorstep import DoorRoom, Doorstep
from remesh.parallel.doors.keyed_hello import HelloVisitor, Seal, StrangerError, greet

HOST = "127.0.0.1"
SECRET = b"s" * 32


@pytest.fixture
def opened():
    """Opens doors; what comes in is counted and stays open."""
    doors, admitted = [], []

    def admit(connection, visitor):
        visitor.welcome(connection)
        admitted.append(connection)

    def open_door(listener=None, *, moment_s=0.0):
        room = DoorRoom(most=4, moment_s=moment_s)
        door = Doorstep(
            listener or listen(HOST),
            lambda: HelloVisitor(SECRET),
            admit,
            limit_s=NEVER_S,
            room=room,
        )
        door.start()
        doors.append(door)
        return door

    open_door.admitted = admitted
    yield open_door
    for door in doors:
        door.close()
    for connection in admitted:
        connection.close()


def dial(door):
    return socket.create_connection((HOST, door.port), timeout=PATIENCE_S)


def test_a_crowd_that_means_well_is_not_pushed_out(opened):
    """security A2: all ranks of a large generation come at the same moment."""
    door = opened(moment_s=NEVER_S)
    crowd = [dial(door) for _ in range(40)]
    failed = []

    def say(connection):
        try:
            greet(connection, SECRET)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=say, args=(one,)) for one in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert soon(lambda: len(opened.admitted) == 40)
    for one in crowd:
        one.close()


def test_who_has_waited_longest_makes_room(opened):
    """security A2"""
    door = opened()
    silent = [dial(door) for _ in range(12)]
    with dial(door) as late:
        greet(late, SECRET)
    assert soon(lambda: len(opened.admitted) == 1)
    for stranger in silent:
        stranger.close()


class FullListener:
    """A listener in a process that has no descriptor left, as often as it is asked."""

    def __init__(self):
        self._own = listen(HOST)
        self.asked = 0
        self.is_full = True

    def accept(self):
        self.asked += 1
        if self.is_full:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._own.accept()

    def __getattr__(self, name):
        return getattr(self._own, name)


def test_without_descriptors_it_waits_instead_of_spinning(opened):
    """security A5: the vault's thread took a processor, before."""
    listener = FullListener()
    door = opened(listener)
    with dial(door) as client:
        asked = soon(lambda: listener.asked >= 3) and listener.asked
        assert asked < 100
        listener.is_full = False
        greet(client, SECRET)
    assert soon(lambda: len(opened.admitted) == 1)


def test_a_door_closes_with_a_silent_one_before_it(opened):
    door = opened()
    with dial(door) as silent:
        silent.recv(32)
        door.close()
        door.close()
        assert silent.recv(1) == b""


def test_an_answer_that_is_sent_back_proves_nothing():
    """Each side's proof has a label of its own."""
    visitor = HelloVisitor(SECRET)
    with pytest.raises(StrangerError):
        visitor.hear(bytearray(visitor.opening + visitor._proof(b"server")))


def test_the_same_piece_has_another_seal_each_time():
    one, same, other = Seal(b"k"), Seal(b"k"), Seal(b"l")
    seals = [one.next(b"a", b"b"), one.next(b"ab")]
    assert seals == [same.next(b"ab"), same.next(b"a", b"b")]
    assert seals[0] != seals[1]
    assert other.next(b"ab") not in seals


@pytest.mark.parametrize(
    ("address", "where"),
    [("10.0.0.7:80", ("10.0.0.7", 80)), ("[fd00::7]:80", ("fd00::7", 80)), ("h:0", ("h", 0))],
)
def test_an_address_is_parted_and_joined(address, where):
    """parallel A11"""
    assert parted(address) == where
    assert joined(*where) == address


@pytest.mark.parametrize("address", ["", "h", "h:", ":80", "h:x", "h:-1", "h:65536", "h:\u0663"])
def test_what_is_no_address_is_told(address):
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parted(address)
