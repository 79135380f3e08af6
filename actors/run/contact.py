"""How to reach the live controller of a run, and what it answers."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from remesh.orchestrator.user_errors import UnreachableError, UserError
from remesh.parallel.doors.addresses import joined

ANSWER_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """How to reach the controller of a live run, and the submission that may take it up.

    `metrics_port` is None where the metrics have no port of their own. `machine` is where the `pid`
    counts. A controller that has given no word for `lease_s` is gone.
    """

    run: str
    host: str
    port: int
    token: str
    address: str
    pid: int
    started_s: float
    submission: str = ""
    metrics_port: int | None = None
    machine: str = ""
    lease_s: float = 20.0


def ask(contact: Contact, path: str) -> Any:
    """What the live controller answers, None if it is not there any more."""
    try:
        return _call(contact, path, None)
    except (OSError, ValueError, HTTPException):  # somebody else may listen there by now
        return None


def tell(contact: Contact, path: str, wish: Mapping[str, Any]) -> str:
    """Ask the live controller for something; its answer in a sentence.

    Raises: UserError if it refuses, UnreachableError if it is not there any more.
    """
    try:
        answer = _call(contact, path, json.dumps(wish).encode())
        return str(answer["text"])
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read().decode(errors="replace")
        if error.code == HTTPStatus.BAD_REQUEST:
            raise UserError(reason) from None
        raise UnreachableError(f"the run's controller does not answer: {error}") from None
    except (OSError, ValueError, LookupError, TypeError, HTTPException) as error:
        raise UnreachableError(f"the run's controller does not answer: {error}") from None


def _call(contact: Contact, path: str, body: bytes | None) -> Any:
    request = urllib.request.Request(
        f"http://{joined(contact.host, contact.port)}{path}",
        headers={"Authorization": f"Bearer {contact.token}"},
        data=body,
    )
    # No proxy of the environment: it reaches another loopback, and would learn the token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=ANSWER_LIMIT_S) as answer:
        return json.load(answer)
