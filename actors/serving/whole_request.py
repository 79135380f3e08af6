"""An HTTP request that is heard whole before anybody works for it, and its answer in one piece.

The door hears it: within one time limit, in so many bytes, and with no thread for a client that is
slow or silent. It is then parsed by Python's own handler, from memory and to memory, so that no
client can hold that up either. One request a connection.
"""

import io
import re
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address

MAX_HEAD_BYTES = 1 << 14
MAX_BODY_BYTES = 1 << 16
TEXT = "text/plain; charset=utf-8"
_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,9})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
# Names under which no site of the internet can be reached, so none can make a browser ask here.
_PRIVATE = (".localhost", ".local", ".internal", ".svc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`body` is None where there is none of a length that is allowed."""

    method: str
    path: str
    authorization: str
    body: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a request."""

    content_type: str = TEXT
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


class RequestVisitor:
    """Hears one request. A body longer than allowed is not waited for."""

    opening = b""
    most_bytes = MAX_HEAD_BYTES + MAX_BODY_BYTES

    def __init__(self) -> None:
        self.heard = b""

    def hear(self, received: bytearray) -> bool:
        """Raises: ConnectionError if the head has no end."""
        end = _END.search(received)
        if end is None or end.end() > MAX_HEAD_BYTES:
            if len(received) > MAX_HEAD_BYTES:
                raise ConnectionRefusedError("a head without end")
            return False
        told = _LENGTH.search(received, 0, end.start() + 2)
        length = int(told[1]) if told else 0
        if length <= MAX_BODY_BYTES and len(received) < end.end() + length:
            return False
        self.heard = bytes(received)
        return True


def replied(heard: bytes, reply: Callable[[Request], Reply], names: Collection[str] = ()) -> bytes:
    """What to send for a request that was heard. What `reply` raises is raised.

    `names` are those by which it may ask, in small letters, beside what `is_known`.
    """
    handler = _MemoryHandler(heard, reply, names)
    handler.handle_one_request()
    return handler.wfile.getvalue()


def is_known(host: str, names: Collection[str] = ()) -> bool:
    """Whether it is an address, a name that only this network can have given, or one of these."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    name = name.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        ip_address(name)
    except ValueError:
        known = {socket.gethostname().lower(), *names}
        return name in known or "." not in name or name.endswith(_PRIVATE)
    return True


class _MemoryHandler(BaseHTTPRequestHandler):
    rfile: io.BytesIO
    wfile: io.BytesIO

    def __init__(
        self, heard: bytes, reply: Callable[[Request], Reply], names: Collection[str]
    ) -> None:
        # Not the base's, which serves a socket.
        self.rfile, self.wfile = io.BytesIO(heard), io.BytesIO()
        self.client_address = ("", 0)
        self.close_connection = True
        self._reply = reply
        self._names = names

    def do_GET(self) -> None:
        self._answer(None)

    def do_HEAD(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        is_length = _COUNT.fullmatch(length) and int(length) <= MAX_BODY_BYTES
        self._answer(self.rfile.read(int(length)) if is_length else None)

    def _answer(self, body: bytes | None) -> None:
        host = self.headers.get("Host")
        if host is None or is_known(host, self._names):
            authorization = self.headers.get("Authorization", "")
            method = "GET" if self.command == "HEAD" else self.command
            reply = self._reply(
                Request(method=method, path=self.path, authorization=authorization, body=body)
            )
        else:
            text = (
                f"{host[:200]!r} is no name of this machine; ask by its address, "
                f"or let metrics.names hold the name"
            )
            reply = Reply(body=text.encode(), status=HTTPStatus.MISDIRECTED_REQUEST)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Requests are not logged."""
