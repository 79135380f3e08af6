"""Small sealed datagrams that are answered at once, for what is said often and may be lost.

Each carries who says it, a number that grows, and a keyed hash of both and of what is said: nobody
who does not know the secret can say or answer anything, and what comes twice counts once. The hash
is of the box's own name as well, so what was written to one before it counts for nothing. Nothing
is hidden, and nothing arrives for certain: whoever has no answer in time says it another way.

A call through Ray costs both sides together about 2 ms of processors, a letter a tenth of that.
"""

import hmac
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from remesh.parallel.doors.addresses import joined, parted, resolved
from remesh.parallel.threads import heard_thread

MOST_BYTES = 1 << 12
DISTRUSTED = 80  # letters that are not written after one that was not answered
_HEAD = struct.Struct("!QQ")  # who says it, and its number
_SEAL_BYTES = 16
_NAMED = "/"  # between where a box is and its name
_NAME_BYTES = 8


class LetterWriter:
    """One who says something now and then, to whoever reads at the address that it was told.

    For one thread, which calls `answer` when it is readable.
    """

    def __init__(self, host: str, secret: str, sender: int) -> None:
        """Raises: OSError."""
        self._socket = _socket(host)
        self._secret = secret
        self._key = b""
        self._sender = sender
        self._number = 0
        self._waits = False
        self._distrusts = 0
        self._address = ""

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_told(self, address: str) -> None:
        """Who reads there answers to them, empty for nobody."""
        if address != self._address:
            self._address, self._distrusts = address, 0
            self._key = _key(self._secret, address)

    def write(self, body: bytes) -> bool:
        """Whether it was worth a try. After one that was not answered there are none for a while:
        a network may let none through.
        """
        if self._waits:
            self._waits, self._distrusts = False, DISTRUSTED
        if not self._address or self._distrusts:
            self._distrusts = max(0, self._distrusts - 1)
            return False
        try:
            host, port = parted(self._address.partition(_NAMED)[0])
            self._number += 1
            letter = _sealed(self._key, b"said", (self._sender, self._number), body)
            self._socket.sendto(letter, (resolved(host)[1], port))
        except (OSError, ValueError):
            return False
        self._waits = True
        return True

    def forget(self) -> None:
        """No answer is waited for any more: the same is said another way."""
        self._waits = False

    def answer(self) -> bytes | None:
        """What is answered to the newest letter, None if there is nothing that is."""
        try:
            data = self._socket.recv(MOST_BYTES)
        except OSError:  # nothing is there, or nobody at the address
            return None
        opened = _opened(self._key, b"answered", data)
        if opened is None or not self._waits or opened[0] != (self._sender, self._number):
            return None
        self._waits = False
        return opened[1]

    def close(self) -> None:
        self._socket.close()


class LetterBox:
    """Reads letters on a port of its own, each once, and answers what `heard` makes of them.

    `address` ends with a name that no other box has, so none on the same port reads its letters.
    """

    def __init__(self, host: str, secret: str, heard: Callable[[bytes], bytes]) -> None:
        """Raises: OSError."""
        self._socket = _socket(host)
        self._socket.setblocking(True)
        self._heard = heard
        self._newest: dict[int, int] = {}
        where = joined(*self._socket.getsockname()[:2])
        self.address = f"{where}{_NAMED}{secrets.token_hex(_NAME_BYTES)}"
        self._key = _key(secret, self.address)

    def start(self) -> None:
        heard_thread(self._live, name="letters").start()

    def turn(self) -> None:
        """The next letter, which is waited for.

        Raises: OSError if there is no way to who has written it, and what `heard` raises: that is
            a ValueError for what it cannot read.
        """
        data, sender = self._socket.recvfrom(MOST_BYTES)
        opened = _opened(self._key, b"said", data)
        if opened is None:
            return
        head, body = opened
        if head[1] <= self._newest.get(head[0], 0):
            return
        self._newest[head[0]] = head[1]
        self._socket.sendto(_sealed(self._key, b"answered", head, self._heard(body)), sender)

    def close(self) -> None:
        self._socket.close()

    def _live(self) -> None:
        while self._socket.fileno() >= 0:
            with suppress(OSError, ValueError):  # it is said another way
                self.turn()


def _socket(host: str) -> socket.socket:
    family, ip = resolved(host)
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.bind((ip, 0))
    made.setblocking(False)
    return made


def _key(secret: str, address: str) -> bytes:
    return hmac.digest(secret.encode(), address.encode(), "sha256")


def _sealed(key: bytes, label: bytes, head: tuple[int, int], body: bytes) -> bytes:
    told = _HEAD.pack(*head) + body
    return _seal(key, label, told) + told


def _opened(key: bytes, label: bytes, data: bytes) -> tuple[tuple[int, int], bytes] | None:
    """Who has said it, its number and what it says; None of what nobody of ours has."""
    told = data[_SEAL_BYTES:]
    right = hmac.compare_digest(data[:_SEAL_BYTES], _seal(key, label, told))
    if not right or len(told) < _HEAD.size:
        return None
    sender, number = _HEAD.unpack_from(told)
    return (sender, number), told[_HEAD.size :]


def _seal(key: bytes, label: bytes, told: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + told, "sha256")[:_SEAL_BYTES]
