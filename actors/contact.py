"""How to reach the live controller of a run, and what it answers."""

import json
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

ANSWER_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """How to reach the controller of a live run, and the submission that may take it up."""

    run: str
    host: str
    port: int
    token: str
    address: str
    pid: int
    started_s: float
    submission: str = ""


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
