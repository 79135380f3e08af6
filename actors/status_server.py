"""The controller's answers over HTTP, on loopback; a token guards every one of them."""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from secrets import compare_digest
from socketserver import ThreadingTCPServer
from typing import Any

REQUEST_LIMIT_S = 10.0
CLOSE_S = 0.1

Answers = dict[str, Callable[[], Any]]


class StatusServer:
    """Serves JSON at each path of `answers` to whoever holds the token."""

    def __init__(self, answers: Answers, token: str) -> None:
        # Not http.server's own, which asks DNS for the name of its address.
        self._server = ThreadingTCPServer(("127.0.0.1", 0), _handler(answers, token))
        self._server.daemon_threads = True
        self.host, self.port = "127.0.0.1", int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(answers: Answers, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_LIMIT_S

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            if not compare_digest(given.encode(), f"Bearer {token}".encode()):
                self.send_error(HTTPStatus.UNAUTHORIZED)
            elif self.path not in answers:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send(json.dumps(answers[self.path]()).encode())

        def _send(self, body: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Requests are not logged."""

    return Handler
