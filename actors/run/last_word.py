"""When a run's controller last gave a sign of life, and how long it may live on after that.

A controller that does not answer need not be dead: it may be out of reach, or be started again just
now. Its journal tells: it is written to as things happen, and touched where nothing does.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from remesh.actors.run.contact import Contact

SIGN_S = 2.0  # between two signs of life
_SEEN_LATE_S = 60.0  # a file system that is shared may show a change so much later


def last_word_age_s(run_dir: Path) -> float | None:
    """Seconds since a controller of this run, or its start, was last heard of; None if never."""
    moments = [_changed_s(run_dir / "run.json")]
    for room in ("journal", "claims"):
        with suppress(OSError):
            moments += [_changed_s(file) for file in (run_dir / room).iterdir()]
    newest_s = max((moment for moment in moments if moment is not None), default=None)
    return None if newest_s is None else max(0.0, time.time() - newest_s)


def may_live(contact: Contact | None, last_word_age_s: float) -> bool:
    """Whether a controller that does not answer may be alive, by the age of its last word.

    The workers of one that has not been heard of for its lease have ended by themselves.
    """
    lease_s = contact.lease_s if contact else 0.0
    return last_word_age_s <= lease_s + _SEEN_LATE_S


def age_text(age_s: float) -> str:
    """Such as "3 s ago"."""
    return f"{age_s:.0f} s ago" if age_s < 100 else f"{age_s / 60:.0f} min ago"  # noqa: PLR2004


def network_here() -> str:
    """What tells the loopback of this process from that of another machine or container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


def _changed_s(file: Path) -> float | None:
    """Opened, since a file system that is shared looks for news only then."""
    try:
        with file.open("rb") as opened:
            return os.fstat(opened.fileno()).st_mtime
    except OSError:
        return None
