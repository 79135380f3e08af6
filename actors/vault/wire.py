"""How vaults and workers talk: short messages in JSON, some of them followed by plain bytes.

A connection begins with a proof of the run's token by both sides and the version of the wire's
format, and each piece of what is said afterwards ends with a keyed hash: who stands in between can
read it, but neither change nor repeat it. Nothing that is received is ever executed or unpickled,
and every receipt is bounded in size and in time.
"""

import hmac
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from remesh.actors.vault.messages import Message
from remesh.orchestrator.control.words import codec
from remesh.orchestrator.vault.vault_words import Refused
from remesh.parallel.doors.addresses import parted
from remesh.parallel.doors.keyed_hello import SEAL_BYTES, Session, greet
from remesh.parallel.state.bounded_json import parse

WIRE_FORMAT = 3
TOKEN_BYTES = 32
HELLO = struct.Struct("!I")  # the version of the format
MAX_COUNT = 2**53
MAX_MESSAGE_BYTES = 1 << 16
_MAX_VALUES = 1 << 12
_LENGTH = struct.Struct("!I")
_PIECE_BYTES = 4 << 20  # sent and received under one deadline


class VaultError(OSError):
    """A vault refused, or does not keep to the protocol. The message says what."""


class Line:
    """One connection. `limit_s` bounds every wait for the other side but the one for a message.

    Sending and receiving are for one thread each. Raises: OSError once it is broken.
    """

    def __init__(self, connection: socket.socket, session: Session, limit_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, round(limit_s))
        for option, value in (
            (socket.TCP_KEEPIDLE, seconds),
            (socket.TCP_KEEPINTVL, seconds),
            (socket.TCP_KEEPCNT, 3),
            (socket.TCP_USER_TIMEOUT, 1000 * 4 * seconds),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.settimeout(limit_s)
        self._connection = connection
        self._session = session
        self._limit_s = limit_s
        self._early = b""

    @classmethod
    def open(cls, address: str, token: str, limit_s: float) -> Self:
        """Raises: OSError if nobody is there, StrangerError if it is none who knows the token."""
        try:
            where = parted(str(address))
        except ValueError as error:
            raise VaultError(str(error)) from None
        connection = socket.create_connection(where, timeout=limit_s)
        try:
            line = cls(connection, greet(connection, token.encode()), limit_s)
            line.send_bytes(HELLO.pack(WIRE_FORMAT))
        except OSError:
            connection.close()
            raise
        return line

    def close(self) -> None:
        """Repeatable, from any thread; it ends the waits of the others."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def send(self, message: Message, data: memoryview | bytes = b"") -> None:
        encoded = json.dumps(codec.encode(Message, message), allow_nan=False).encode()
        framed = _LENGTH.pack(len(encoded)) + encoded
        self._connection.sendall(framed + self._session.said.next(framed))
        self.send_bytes(data)

    def send_bytes(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            self._connection.sendall(piece)
            self._connection.sendall(self._session.said.next(piece))

    def receive(self, limit_s: float | None = None) -> Message:
        """The next message, within the limit. Raises: EOFError once the other side has left."""
        self._connection.settimeout(limit_s)
        try:
            first = self._early or self._connection.recv(1)
        finally:
            self._connection.settimeout(self._limit_s)
        self._early = b""
        if not first:
            raise EOFError
        return self._rest(first)

    def poll(self) -> Message | None:
        """The next message if there is one now. Raises: EOFError as `receive`."""
        self._connection.settimeout(0)
        try:
            self._early = self._connection.recv(1)
        except BlockingIOError:
            return None
        finally:
            self._connection.settimeout(self._limit_s)
        if not self._early:
            raise EOFError
        return self.receive(self._limit_s)

    def receive_into(self, *views: memoryview) -> None:
        """What the other side has sent by one `send_bytes`, in these one after the other.

        Do not use it if this raises.
        """
        for piece in _sealed_pieces(views):
            for part in piece:
                self._fill(part)
            self._prove(*piece)

    def receive_bytes(self, size_bytes: int) -> bytearray:
        data = bytearray(size_bytes)
        self.receive_into(memoryview(data))
        return data

    def ask(self, message: Message, limit_s: float) -> Message:
        """The answer. Raises: VaultError for a refusal, in the vault's words."""
        self.send(message)
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> Message:
        try:
            answer = self.receive(limit_s)
        except EOFError:
            raise VaultError("the vault ended the connection") from None
        if isinstance(answer, Refused):
            raise VaultError(answer.error)
        return answer

    def refuse(self, error: str) -> None:
        """Say so, hear what was said meanwhile, and no more: the other side may still listen."""
        self.send(Refused(error=error))
        with suppress(VaultError):
            self.receive(self._limit_s)

    def _rest(self, first: bytes) -> Message:
        head = first + self._taken(_LENGTH.size - 1)
        (length,) = _LENGTH.unpack(head)
        if length > MAX_MESSAGE_BYTES:
            raise VaultError(f"a message of {length} bytes is no message")
        encoded = bytes(self._taken(length))
        self._prove(head, encoded)
        try:
            values = parse(encoded, max_bytes=MAX_MESSAGE_BYTES, max_values=_MAX_VALUES)
            _check_counts(values)
            message: Message = codec.decode(Message, values)
        except ValueError as error:
            raise VaultError(f"no message: {error}") from None
        return message

    def _prove(self, *parts: bytes | memoryview) -> None:
        """What was just received is what was sent. Raises: VaultError."""
        expected = self._session.heard.next(*parts)
        if not hmac.compare_digest(self._taken(SEAL_BYTES), expected):
            raise VaultError("what came is not what was sent: its keyed hash is another")

    def _taken(self, size_bytes: int) -> bytearray:
        data = bytearray(size_bytes)
        self._fill(memoryview(data))
        return data

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise VaultError("the connection ended in the middle")
            view = view[count:]


def _sealed_pieces(views: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """What is proven by one keyed hash each: as `send_bytes` cuts them, wherever views end."""
    piece, room = [], _PIECE_BYTES
    for view in views:
        at = 0
        while at < len(view):
            piece.append(view[at : at + room])
            at, room = at + len(piece[-1]), room - len(piece[-1])
            if not room:
                yield piece
                piece, room = [], _PIECE_BYTES
    if piece:
        yield piece


def _check_counts(values: Any) -> None:
    """Raises: ValueError for a number that counts nothing; all of a message's whole numbers do."""
    if isinstance(values, (dict, list)):
        for value in values.values() if isinstance(values, dict) else values:
            _check_counts(value)
    elif isinstance(values, int) and not 0 <= values < MAX_COUNT:
        raise ValueError(f"{values} is no count")
