"""A run that is asked from wherever its folder is seen: it answers, is out of reach, or is gone.

The three are told apart, since each has another cure. That nobody answers does not say that the run
is gone: on another host its address may mean nothing, and Ray starts a dead controller again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from remesh.actors.run.contact import Contact, answer_of
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.last_word import age_text, last_word_age_s, may_live, network_here
from remesh.orchestrator.user_errors import UnreachableError
from remesh.parallel.doors.addresses import answers, parted

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
    run_dir: Path, path: str, wish: Mapping[str, Any] | None = None, *, submission: str = ""
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
    if not _is_elsewhere(contact):
        try:
            return Reached(answer=answer_of(contact, path, wish))
        except UnreachableError as error:
            reason = f" ({error})"
    if _is_seen_dead(contact):
        return Gone(died=True)
    age_s = last_word_age_s(run_dir) or 0.0
    if not may_live(contact, age_s):
        return Gone(died=True)
    return Unreachable(
        reason=f"{run_dir}: the run cannot be reached from here, last word {age_text(age_s)}"
        f"{reason}; {CURE}"
    )


def _without_word(run_dir: Path) -> Answer:
    """A start claims the run before its controller says how it can be reached."""
    claims = sorted((run_dir / "claims").glob("*.json"))
    is_begun = claims and (run_dir / "journal" / f"{claims[-1].stem}.jsonl").exists()
    if not claims or is_begun or not may_live(None, last_word_age_s(run_dir) or 0.0):
        return Gone()
    return Unreachable(
        reason=f"{run_dir}: the run is just being started, and says nothing yet; ask again"
    )


def _is_elsewhere(contact: Contact) -> bool:
    """At that address of ours is somebody else, who must not learn the token."""
    try:
        loopback = ip_address(contact.host).is_loopback
    except ValueError:
        return True
    return loopback and contact.machine not in ("", network_here())


def _is_seen_dead(contact: Contact) -> bool:
    """Its cluster has ended on this machine: nobody listens where that was. Ray is not asked."""
    if contact.machine != network_here():
        return False
    try:
        return not answers(parted(contact.address))
    except ValueError:
        return False
