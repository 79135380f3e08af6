"""What the kernel says of processes: their state, their session, what they use, their end."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self


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


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """`threads`: by id, how long each has run, and has waited for a processor, in ns."""

    threads: dict[int, tuple[int, int]]

    def since(self, earlier: Self) -> tuple[float, float]:
        """Seconds for which the threads that are there have run, and have waited, since then.

        What has ended in between took its time with it, and takes none from the others.
        """
        none = (0, 0)
        spent = [
            (ran - ran_then, waited - waited_then)
            for one, (ran, waited) in self.threads.items()
            for then in [earlier.threads.get(one, none)]
            # One that has run for less than another with its id is a new one.
            for ran_then, waited_then in [then if then[0] <= ran else none]
        ]
        return sum(ran for ran, _ in spent) / 1e9, sum(waited for _, waited in spent) / 1e9


def processor_use(pid: int) -> ProcessorUse | None:
    """None where the process is gone, or the kernel does not count: who lives has run."""
    threads = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # this thread has just ended
                ran, waited, _ = (task / "schedstat").read_text().split()
                threads[int(task.name)] = int(ran), int(waited)
    return ProcessorUse(threads) if any(ran for ran, _ in threads.values()) else None


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
