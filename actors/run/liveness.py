"""Whether a controller that does not answer may be alive all the same.

It listens where its host can reach it, and a question from elsewhere tells nothing. What does tell
is the age of its last word in the run's folder, which it renews as long as it lives: after its
lease its workers have ended without it, and whoever comes back later is fenced by the claims.
"""

from contextlib import suppress
from pathlib import Path

from remesh.actors.run.contact import Contact


def may_live(contact: Contact, *, word_age_s: float, process: bool | None) -> bool:
    """`process` is whether its process can be there, None where that cannot be seen from here."""
    return process is not False and word_age_s < contact.lease_s


def this_machine() -> str:
    """What two processes have in common that know each other's pids."""
    return f"{_boot()} {Path('/proc/self/ns/pid').readlink()}"


def this_network() -> str:
    """What two processes have in common that have the same loopback."""
    return f"{_boot()} {Path('/proc/self/ns/net').readlink()}"


def last_word_s(run_dir: Path) -> float:
    """When the controller gave the last sign in the run's folder."""
    moments = [0.0]
    for path in (run_dir / "run.json", *sorted((run_dir / "journal").glob("*.jsonl"))[-1:]):
        with suppress(FileNotFoundError):
            moments.append(path.stat().st_mtime)
    return max(moments)


def age_text(age_s: float) -> str:
    """Such as "3 s ago"."""
    return f"{age_s:.0f} s ago" if age_s < 100 else f"{age_s / 60:.0f} min ago"  # noqa: PLR2004


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
