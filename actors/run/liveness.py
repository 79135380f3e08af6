"""Whether a controller that does not answer may be alive all the same.

It listens where its host can reach it, and a question from elsewhere tells nothing. What does tell
is the age of its last word in the run's folder, which it renews as long as it lives: after its
lease its workers have ended without it, and whoever comes back later is fenced by the claims. On
its own machine its process tells at once.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from remesh.actors.node.processes import look
from remesh.actors.run.contact import Contact, ask
from remesh.data.regular_file import open_regular
from remesh.parallel.doors.addresses import answers, parted

LOOK_S = 0.5


def may_live(contact: Contact, *, word_age_s: float, process: bool | None) -> bool:
    """`process` is whether its process is there, None where that cannot be seen from here."""
    return process is not False and word_age_s < contact.lease_s


def this_machine() -> str:
    """What two processes have in common that know each other's pids."""
    return f"{_boot()} {Path('/proc/self/ns/pid').readlink()}"


def this_network() -> str:
    """What two processes have in common that have the same loopback."""
    return f"{_boot()} {Path('/proc/self/ns/net').readlink()}"


def is_elsewhere(contact: Contact) -> bool:
    """Whether at that address of ours is somebody else, who must not learn the token."""
    try:
        loopback = ip_address(contact.host).is_loopback
    except ValueError:
        return True
    return loopback and contact.network not in ("", this_network())


def can_be_there(contact: Contact) -> bool | None:
    """Whether its process is there, or can come back; None where that cannot be seen from here.

    Ray starts a dead controller again as long as its cluster is there. Ray itself is asked nothing.
    """
    if contact.network == this_network():
        try:
            return answers(parted(contact.address))
        except ValueError:
            return None
    return look(contact.pid) is not None if contact.machine == this_machine() else None


def last_word_s(run_dir: Path) -> float:
    """When the controller gave the last sign in the run's folder.

    The files are opened for it: NFS shows the age of one that is not as it was a minute ago.
    """
    moments = [0.0]
    for path in (run_dir / "run.json", *sorted((run_dir / "journal").glob("*.jsonl"))[-1:]):
        with suppress(OSError), open_regular(path) as file:
            moments.append(os.fstat(file.fileno()).st_mtime)
    return max(moments)


def age_text(age_s: float) -> str:
    """Such as "3 s ago"."""
    return f"{age_s:.0f} s ago" if age_s < 100 else f"{age_s / 60:.0f} min ago"  # noqa: PLR2004


def who_holds(
    run_dir: Path,
    contact: Contact,
    say: Callable[[str], None] | None,
    wait: Callable[[float], None],
) -> str | None:
    """The live controller in words, None once it is known to be gone: at once or after its lease.

    With `say` that is waited for, unless it gives another word meanwhile.
    """
    first_s, waits = last_word_s(run_dir), False
    while is_elsewhere(contact) or not ask(contact, "/status"):
        word_s = last_word_s(run_dir)
        age_s = max(time.time() - word_s, 0.0)
        if not may_live(contact, word_age_s=age_s, process=can_be_there(contact)):
            return None
        silent = f"its last word came {age_text(age_s)}, and it cannot be reached from here"
        if say is None or word_s > first_s:
            return f"run {contact.run}: {silent}; without one for {contact.lease_s:g} s it is gone"
        if not waits:
            say(f"run {contact.run} may be alive: {silent}; waiting until it must be gone")
        waits = True
        wait(LOOK_S)
    return f"run {contact.run}, which is alive (pid {contact.pid})"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
