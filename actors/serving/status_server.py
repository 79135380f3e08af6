"""The controller's answers over HTTP; a token guards all but the metrics at their own port.

What changes something is a POST with a small JSON object, and is never served without a token.
The door hears a request whole, then a few threads answer: whatever clients do costs no more.
"""

import json
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from secrets import compare_digest
from threading import Semaphore
from types import MappingProxyType
from typing import Any

from remesh.actors.serving.whole_request import (
    MAX_BODY_BYTES,
    Reply,
    Request,
    RequestVisitor,
    replied,
)
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.doors.doorstep import Doorstep
from remesh.parallel.threads import heard

REQUEST_LIMIT_S = 10.0
SEND_LIMIT_S = 2.0
NUM_THREADS = 4
MOST_AT_ONCE = 128
ANSWER_BYTES = 1 << 20
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer that is not JSON."""

    content_type: str
    body: bytes


Answers = dict[str, Callable[[], Any]]
Answered = Callable[[str, bytes, float], None]
Actions = Mapping[str, Callable[[dict[str, Any]], Any]]


class StatusServer:
    """Serves JSON, or a Page, at each path of `answers` to whoever holds the token.

    Without a token to everybody, but for `actions`. A UserError of one is answered as its text.
    Asked by a name that may be a site's of the internet it answers to `names` only.
    `limit_s` bounds the hearing of a request, whatever its client does.
    Raises: OSError if the port is taken; 0 is a free one.
    """

    def __init__(  # noqa: PLR0913 - each has a default or a reason of its own
        self,
        answers: Answers,
        token: str | None,
        *,
        actions: Actions = MappingProxyType({}),
        host: str = LOOPBACK,
        port: int = 0,
        names: Collection[str] = (),
        limit_s: float = REQUEST_LIMIT_S,
    ) -> None:
        assert token is not None or not actions
        self._desk = _Desk(answers, actions, token)
        self._answered: Answered = lambda _client, _heard, _asked_s: None
        self._names = frozenset(name.lower() for name in names)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="status")
        self._places = Semaphore(MOST_AT_ONCE)
        self._door = Doorstep.open((host, port), RequestVisitor, self._admit, limit_s=limit_s)
        self.host, self.port = self._door.host, self._door.port

    def tell(self, answered: Answered) -> None:
        """Of each answer, before it is sent: the client's address, what was heard, and a monotonic
        moment that is no later than what the answer tells of.
        """
        self._answered = answered

    def close(self) -> None:
        """Repeatable."""
        self._door.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _admit(self, connection: socket.socket, visitor: RequestVisitor) -> None:
        if not self._places.acquire(blocking=False):
            raise ConnectionRefusedError("too many at once")
        try:
            heard(self._threads.submit(self._serve, connection, visitor.heard))
        except RuntimeError:  # closed by now
            raise ConnectionAbortedError("the server is closed") from None

    def _serve(self, connection: socket.socket, heard: bytes) -> None:
        # A client that hangs up, or does not read, is nothing to speak of.
        with connection, suppress(OSError):
            try:
                # Room for the whole answer: then nobody is waited for.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ANSWER_BYTES)
                connection.settimeout(SEND_LIMIT_S)
                client, asked_s = connection.getpeername()[0], time.monotonic()
                answer = replied(heard, self._desk.reply, self._names)
                self._answered(client, heard, asked_s)
                connection.sendall(answer)
            finally:
                self._places.release()


@dataclass(frozen=True, slots=True)
class _Desk:
    """What can be asked, and by whom."""

    answers: Answers
    actions: Actions
    token: str | None

    def reply(self, request: Request) -> Reply:
        try:
            return self._reply(request)
        except UserError as error:
            return Reply(body=str(error).encode(), status=HTTPStatus.BAD_REQUEST)
        except Exception:  # whatever it is: one request, not the server
            logging.getLogger(__name__).exception("a request could not be answered")
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _reply(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        if not self._may_ask(request.authorization):
            return _refused(HTTPStatus.UNAUTHORIZED)
        if request.method == "GET" and path in self.answers:
            return _told(self.answers[path]())
        if request.method == "POST" and request.path in self.actions:
            return _told(self.actions[request.path](_wish(request.body)))
        return _refused(HTTPStatus.NOT_FOUND)

    def _may_ask(self, authorization: str) -> bool:
        token = self.token
        return token is None or compare_digest(authorization.encode(), f"Bearer {token}".encode())


def _wish(body: bytes | None) -> dict[str, Any]:
    """The body, a JSON object. Raises: UserError if it is none."""
    if body is None:
        raise UserError(f"expected a JSON object of at most {MAX_BODY_BYTES} bytes")
    try:
        wish = json.loads(body)
    except (ValueError, RecursionError):
        wish = None
    if not isinstance(wish, dict):
        raise UserError("expected a JSON object")
    return wish


def _told(answer: Any) -> Reply:
    if isinstance(answer, Page):
        return Reply(content_type=answer.content_type, body=answer.body)
    return Reply(content_type="application/json", body=json.dumps(answer).encode())


def _refused(status: HTTPStatus) -> Reply:
    return Reply(body=f"{status.value} {status.phrase}\n".encode(), status=status)
