"""The controller's answers over HTTP; a token guards all but the metrics at their own port."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from secrets import compare_digest
from socketserver import ThreadingTCPServer
from typing import Any

REQUEST_LIMIT_S = 10.0
CLOSE_S = 0.1
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer that is not JSON."""

    content_type: str
    body: bytes


Answers = dict[str, Callable[[], Any]]


class _Server(ThreadingTCPServer):
    # Not http.server's own, which asks DNS for the name of its address.
    daemon_threads = True
    allow_reuse_address = True  # a port that was closed a moment ago


class StatusServer:
    """Serves JSON, or a Page, at each path of `answers` to whoever holds the token.

    Without a token to everybody. Raises: OSError if the port is taken; 0 is a free one.
    """

    def __init__(
        self, answers: Answers, token: str | None, *, host: str = LOOPBACK, port: int = 0
    ) -> None:
        self._server = _Server((host, port), _handler(answers, token))
        self.host, self.port = host, int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(answers: Answers, token: str | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_LIMIT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if not self._may_ask():
                self.send_error(HTTPStatus.UNAUTHORIZED)
            elif path not in answers:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send(answers[path]())

        def _may_ask(self) -> bool:
            given = self.headers.get("Authorization", "")
            return token is None or compare_digest(given.encode(), f"Bearer {token}".encode())

        def _send(self, answer: Any) -> None:
            page = answer if isinstance(answer, Page) else _json_page(answer)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Requests are not logged."""

    return Handler


def _json_page(values: Any) -> Page:
    return Page(content_type="application/json", body=json.dumps(values).encode())
