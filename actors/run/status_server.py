"""The controller's answers over HTTP; a token guards all but the metrics at their own port.

What changes something is a POST with a small JSON object, and is never served without a token.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from secrets import compare_digest
from socketserver import ThreadingTCPServer
from types import MappingProxyType
from typing import Any

from remesh.orchestrator.user_errors import UserError

REQUEST_LIMIT_S = 10.0
CLOSE_S = 0.1
MAX_BODY_BYTES = 1 << 16
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer that is not JSON."""

    content_type: str
    body: bytes


Answers = dict[str, Callable[[], Any]]
Actions = Mapping[str, Callable[[dict[str, Any]], Any]]


class StatusServer:
    """Serves JSON, or a Page, at each path of `answers` to whoever holds the token.

    Without a token to everybody, but for `actions`. A UserError of one is answered as its text.
    Raises: OSError if the port is taken; 0 is a free one.
    """

    def __init__(
        self,
        answers: Answers,
        token: str | None,
        *,
        actions: Actions = MappingProxyType({}),
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        assert token is not None or not actions
        self._server = _Server((host, port), answers, actions, token)
        self.host, self.port = host, int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    # Not http.server's own, which asks DNS for the name of its address.
    daemon_threads = True
    allow_reuse_address = True  # a port that was closed a moment ago

    def __init__(
        self, address: tuple[str, int], answers: Answers, actions: Actions, token: str | None
    ) -> None:
        super().__init__(address, _RequestHandler)
        self.answers, self.actions, self.token = answers, actions, token


class _RequestHandler(BaseHTTPRequestHandler):
    timeout = REQUEST_LIMIT_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._may_ask():
            self.send_error(HTTPStatus.UNAUTHORIZED)
        elif path not in self.server.answers:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(self.server.answers[path]())

    def do_POST(self) -> None:
        if not self._may_ask():
            self.send_error(HTTPStatus.UNAUTHORIZED)
        elif self.path not in self.server.actions:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._act(self.server.actions[self.path])

    def _act(self, action: Callable[[dict[str, Any]], Any]) -> None:
        try:
            self._send(action(self._wish()))
        except UserError as error:
            page = Page(content_type="text/plain; charset=utf-8", body=str(error).encode())
            self._send(page, HTTPStatus.BAD_REQUEST)

    def _wish(self) -> dict[str, Any]:
        """The body, a JSON object. Raises: UserError if it is none."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            raise UserError(f"expected a JSON object of at most {MAX_BODY_BYTES} bytes")
        try:
            wish = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            wish = None
        if not isinstance(wish, dict):
            raise UserError("expected a JSON object")
        return wish

    def _may_ask(self) -> bool:
        token = self.server.token
        given = self.headers.get("Authorization", "")
        return token is None or compare_digest(given.encode(), f"Bearer {token}".encode())

    def _send(self, answer: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        page = answer if isinstance(answer, Page) else _json_page(answer)
        self.send_response(status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Requests are not logged."""


def _json_page(values: Any) -> Page:
    return Page(content_type="application/json", body=json.dumps(values).encode())
