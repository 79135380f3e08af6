"""What the kernel says of processes: their state, their session, their end."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """`started` tells it from an earlier process with the same pid: clock ticks since the boot.

    `owner` is the user that it runs as.
    """

    pid: int
    owner: int
    parent: int
    session: int
    state: str
    started: int

    @property
    def stopped(self) -> bool:
        """Frozen by a signal or a debugger."""
        return self.state in "Tt"

    @property
    def stopped_by_signal(self) -> bool:
        return self.state == "T"


def look(pid: int) -> Process | None:
    """The process with this pid, None where there is none (zombies count as none)."""
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            # Bytes: a name may be cut in the middle of a character.
            fields = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    found = Process(
        pid=pid,
        owner=owner,
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        started=int(fields[19]),
    )
    return None if found.state in "ZX" else found


def processes() -> Iterator[Process]:
    """All live processes."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return (found for pid in pids if (found := look(pid)))


def session_members(sessions: set[int]) -> list[int]:
    """Pids of all live processes whose session is one of these."""
    return [found.pid for found in processes() if found.session in sessions]


def kill_same(process: Process) -> bool:
    """SIGKILL to this very process, as `signal_same`."""
    return signal_same(process, signal.SIGKILL)


def signal_same(process: Process, number: signal.Signals) -> bool:
    """A signal to this very process, not to one that has got its pid; whether it was there.

    The handle is opened before the process is looked at, so it cannot be replaced in between.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        found = look(process.pid)
        if found is None or (found.started, found.owner) != (process.started, process.owner):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        return True
    finally:
        os.close(handle)


def be_called(name: str) -> None:
    """What this process is called in lists of processes, up to 15 bytes: a forked one tells more
    by that than by the command of the process that it was forked from.
    """
    Path("/proc/self/comm").write_text(name)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
