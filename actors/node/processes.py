"""What the kernel says of processes: their state, their session, their end."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """`started` tells it from an earlier process with the same pid: clock ticks since the boot."""

    pid: int
    parent: int
    session: int
    state: str
    started: int

    @property
    def stopped(self) -> bool:
        """Frozen by a signal or a debugger."""
        return self.state in "Tt"


def look(pid: int) -> Process | None:
    """The process with this pid, None where there is none (zombies count as none)."""
    try:
        # Bytes: a name may be cut in the middle of a character.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    found = Process(
        pid=pid,
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


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
