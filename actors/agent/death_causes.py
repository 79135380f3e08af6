"""Why a process ended, in the words of its WorkerLost: its own, or what the kernel says of it."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

_VMSTAT = Path("/proc/vmstat")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
TOGETHER_S = 1.0

OUT_OF_MEMORY = (
    "out of memory: the kernel killed its process; lower train.microbatch or the workers of a "
    "node, or give the node more memory"
)


class OomKills:
    """Whether the kernel has just killed a process for its memory, or several at once.

    It is asked of the whole machine, and of the control group of this process. `read` is what one
    of these files says, empty where there is none.
    """

    def __init__(self, read: Callable[[Path], str] | None = None) -> None:
        self._read = read or _text
        self._files = (_VMSTAT, *_events_files(self._read(_CGROUP)))
        self._seen = self._counts()
        self._until_s = float("-inf")

    def is_new(self, now_s: float) -> bool:
        """Of a death at this moment; those within a second of it have the same cause."""
        before, self._seen = self._seen, self._counts()
        if any(now > old for now, old in zip(self._seen, before, strict=True)):
            self._until_s = now_s + TOGETHER_S
        return now_s <= self._until_s

    def _counts(self) -> list[int]:
        found = (_OOM_KILL.search(self._read(file)) for file in self._files)
        return [int(count[1]) if count else 0 for count in found]


def cause_of(code: int | None, *, out_of_memory: bool) -> str:
    """`code` as in `Ended`, None where nobody can tell."""
    if code == -signal.SIGKILL and out_of_memory:
        return OUT_OF_MEMORY
    if code is None:
        return "its process ended"
    if code >= 0:
        return f"its process ended with exit code {code}"
    return f"its process died of {_name_of(-code)}"


def _events_files(cgroups: str) -> list[Path]:
    """Version 2 of control groups only, which has one line, "0::PATH"."""
    found = [line.removeprefix("0::") for line in cgroups.splitlines() if line.startswith("0::")]
    return [_CGROUPS / path.lstrip("/") / "memory.events" for path in found]


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
