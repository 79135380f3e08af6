"""What the kernel says of processes: their state, their session, their end."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    session: int
    state: str

    @property
    def stopped(self) -> bool:
        """Frozen by a signal or a debugger."""
        return self.state in "Tt"


def look(pid: int) -> Process | None:
    """The process with this pid, None where there is none (zombies count as none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    found = Process(pid=pid, session=int(fields[3]), state=fields[0])
    return None if found.state in "ZX" else found


def session_members(sessions: set[int]) -> list[int]:
    """Pids of all live processes whose session is one of these."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if (found := look(pid)) and found.session in sessions]


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
