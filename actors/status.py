"""A run seen from another shell: from its live controller over HTTP, else from its journal.

The controller listens on loopback; a token from run.json (mode 0600) guards every answer.
"""

import json
import threading
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from secrets import compare_digest
from socketserver import ThreadingTCPServer
from typing import Any

from remesh.actors.journal_files import Journal, read_journals
from remesh.actors.run_folder import Contact, RunFolder
from remesh.actors.run_view import status_of
from remesh.orchestrator.errors import UserError

ANSWER_LIMIT_S = 3.0
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


def ask(contact: Contact, path: str) -> Any:
    """What the live controller answers, None if it is not there any more."""
    request = urllib.request.Request(
        f"http://{contact.host}:{contact.port}{path}",
        headers={"Authorization": f"Bearer {contact.token}"},
    )
    # No proxy of the environment: it reaches another loopback, and would learn the token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_LIMIT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError, HTTPException):  # somebody else may listen there by now
        return None


def read_status(run_dir: Path) -> dict[str, Any]:
    """Where the run stands. Raises: UserError if there is no run in this folder."""
    contact = RunFolder(run_dir).contact()
    live = ask(contact, "/status") if contact else None
    return {**live, "live": True} if live else {**_from_journal(run_dir), "live": False}


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """What was decided and why, oldest first, over all starts of the run. Raises as read_status."""
    return [entry for journal in _journals(run_dir) for entry in journal.announcements()]


def _from_journal(run_dir: Path) -> dict[str, Any]:
    return status_of(_journals(run_dir)[-1].replay().view())


def _journals(run_dir: Path) -> list[Journal]:
    journals = read_journals(run_dir)
    if not journals:
        raise UserError(f"{run_dir}: there is no run here; start one with: remesh run JOB")
    return journals


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
