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
from remesh.parallel.state.bounded_json import parse

ANSWER_LIMIT_S = 3.0
STATUS = "/status"
_MAX_ANSWER_BYTES, _MAX_ANSWER_VALUES = 1 << 26, 1 << 23  # a status tells of every generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """How to reach the controller of a live run, and the submission that may take it up.

    `metrics_port` is None where the metrics have no port of their own. `machine` is where the `pid`
    counts, `network` where a `host` of loopback does. A controller that has given no word for
    `lease_s` is gone.
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
    network: str = ""


def ask(contact: Contact, path: str) -> Any:
    """What the live controller answers, None if it is not there any more."""
    try:
        return answer_of(contact, path)
    except UnreachableError:
        return None


def answer_of(
    contact: Contact,
    path: str,
    wish: Mapping[str, Any] | None = None,
    limit_s: float = ANSWER_LIMIT_S,
) -> Any:
    """What the live controller answers to a question, or to a wish where there is one.

    Raises: UserError if it refuses, UnreachableError if nobody answers, or somebody else: a status
    has the run's id, and what comes of a wish is a text.
    """
    try:
        body = None if wish is None else json.dumps(wish).encode()
        answer = _call(contact, path, body, limit_s)
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read().decode(errors="replace")
        if error.code == HTTPStatus.BAD_REQUEST:
            raise UserError(reason) from None
        raise UnreachableError(f"the run's controller does not answer: {error}") from None
    except (OSError, ValueError, RecursionError, HTTPException) as error:
        raise UnreachableError(f"the run's controller does not answer: {error}") from None
    told: dict[str, Any] = answer if isinstance(answer, dict) else {}
    if wish is None:
        strange = path == STATUS and told.get("id") != contact.run
    else:
        strange = "text" not in told
    if strange:
        raise UnreachableError("the run's controller does not answer: somebody else is at its port")
    return answer


def _call(contact: Contact, path: str, body: bytes | None, limit_s: float = ANSWER_LIMIT_S) -> Any:
    request = urllib.request.Request(
        f"http://{joined(contact.host, contact.port)}{path}",
        headers={"Authorization": f"Bearer {contact.token}"},
        data=body,
    )
    # No proxy of the environment: it reaches another loopback, and would learn the token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=limit_s) as answer:
        encoded = answer.read(_MAX_ANSWER_BYTES + 1)
    return parse(encoded, max_bytes=_MAX_ANSWER_BYTES, max_values=_MAX_ANSWER_VALUES)
