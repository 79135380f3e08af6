"""A run that is asked from wherever its folder is seen: it answers, is out of reach, or is gone.

The three are told apart, since each has another cure. That nobody answers does not say that the run
is gone: on another host its address may mean nothing, and Ray starts a dead controller again.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remesh.actors.run.contact import ANSWER_LIMIT_S, answer_of
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.liveness import (
    age_text,
    can_be_there,
    is_elsewhere,
    last_word_s,
    may_live,
)
from remesh.orchestrator.user_errors import UnreachableError

START_LIMIT_S = 60.0  # from a claim to the first word of its controller, on busy cores
CURE = (
    "ask where its head runs, or with --address http://HOST:8265 of the job server of its cluster"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The run lives, and this is its answer."""

    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """The run may live, and nobody answered. `reason` is a sentence with its last word's age."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Nobody trains any more. `died` says that the controller has not taken its word back."""

    died: bool = False


Answer = Reached | Unreachable | Gone


def reach(
    run_dir: Path,
    path: str,
    wish: Mapping[str, Any] | None = None,
    *,
    submission: str = "",
    limit_s: float = ANSWER_LIMIT_S,
) -> Answer:
    """The answer to a question, or to a wish; only of a run of the `submission`, if one is given.

    Raises: UserError if the controller refuses the wish.
    """
    contact = RunFolder(run_dir).contact()
    if contact is None:
        return _without_word(run_dir)
    if submission and contact.submission != submission:
        return Gone()
    reason = ""
    if not is_elsewhere(contact):
        try:
            return Reached(answer=answer_of(contact, path, wish, limit_s))
        except UnreachableError as error:
            reason = f" ({error})"
    age_s = max(0.0, time.time() - last_word_s(run_dir))
    if not may_live(contact, word_age_s=age_s, process=can_be_there(contact)):
        return Gone(died=True)
    return Unreachable(
        reason=f"{run_dir}: the run cannot be reached from here, last word {age_text(age_s)}"
        f"{reason}; {CURE}"
    )


def _without_word(run_dir: Path) -> Answer:
    """A start claims the run before its controller says how it can be reached."""
    claims = sorted((run_dir / "claims").glob("*.json"))
    if not claims or (run_dir / "journal" / f"{claims[-1].stem}.jsonl").exists():
        return Gone()
    if time.time() - claims[-1].stat().st_mtime > START_LIMIT_S:
        return Gone()
    return Unreachable(
        reason=f"{run_dir}: the run is just being started, and says nothing yet; ask again"
    )
