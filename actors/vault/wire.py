"""How vaults and workers talk: short messages in JSON, some of them followed by plain bytes.

A connection begins with the run's token and the version of the wire's format. Nothing that is
received is ever executed or unpickled, and every receipt is bounded in size and in time.
"""

import json
import socket
import struct
from contextlib import suppress
from typing import Any, Self

from remesh.actors.vault.messages import Message, Refused
from remesh.orchestrator.control.words import codec
from remesh.parallel.state.bounded_json import parse

WIRE_FORMAT = 1
TOKEN_BYTES = 32
HELLO = struct.Struct("!I")  # behind the token: the version of the format
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

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
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
        self._limit_s = limit_s
        self._early = b""

    @classmethod
    def open(cls, address: str, token: str, limit_s: float) -> Self:
        """Raises: OSError if nobody is there."""
        host, _, port = address.rpartition(":")
        line = cls(socket.create_connection((host, int(port)), timeout=limit_s), limit_s)
        line.send_bytes(token.encode() + HELLO.pack(WIRE_FORMAT))
        return line

    def close(self) -> None:
        """Repeatable, from any thread; it ends the waits of the others."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def send(self, message: Message, data: memoryview | bytes = b"") -> None:
        encoded = json.dumps(codec.encode(Message, message), allow_nan=False).encode()
        self._connection.sendall(_LENGTH.pack(len(encoded)) + encoded)
        self.send_bytes(data)

    def send_bytes(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            self._connection.sendall(view[start : start + _PIECE_BYTES])

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

    def receive_into(self, view: memoryview) -> None:
        while view:
            count = self._connection.recv_into(view[:_PIECE_BYTES])
            if not count:
                raise VaultError("the connection ended in the middle")
            view = view[count:]

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
        (length,) = _LENGTH.unpack(first + self.receive_bytes(_LENGTH.size - 1))
        if length > MAX_MESSAGE_BYTES:
            raise VaultError(f"a message of {length} bytes is no message")
        encoded = bytes(self.receive_bytes(length))
        try:
            values = parse(encoded, max_bytes=MAX_MESSAGE_BYTES, max_values=_MAX_VALUES)
            _check_counts(values)
            message: Message = codec.decode(Message, values)
        except ValueError as error:
            raise VaultError(f"no message: {error}") from None
        return message


def _check_counts(values: Any) -> None:
    """Raises: ValueError for a number that counts nothing; all of a message's whole numbers do."""
    if isinstance(values, (dict, list)):
        for value in values.values() if isinstance(values, dict) else values:
            _check_counts(value)
    elif isinstance(values, int) and not 0 <= values < MAX_COUNT:
        raise ValueError(f"{values} is no count")
