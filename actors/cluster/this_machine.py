"""What this machine has: processors, memory, room on disk and in shared memory."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.fitting import Machine
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url

_SHARED = Path("/dev/shm")  # noqa: S108 - asked for its room only
_KB = 1024


@dataclass(frozen=True, slots=True)
class _Files:
    """Of the limit of a group of processes, what they use, and what of that gives way."""

    limit: str
    used: str
    gives_way: str


_UNIFIED = _Files("memory.max", "memory.current", "inactive_file")
_OLDER = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def this_machine(job: Job) -> Machine:
    """As far as it can be known, for a run of this job."""
    url = job.checkpoint.url
    folder = None if url and is_url(url) else Path(url or job.run_dir)
    return Machine(
        processors=len(os.sched_getaffinity(0)),
        free_bytes=free_memory(),
        disk_bytes=None if folder is None else _free_disk(folder),
        shared_bytes=_free_disk(_SHARED),
    )


def check_metrics_host(job: Job) -> None:
    """Raises: UserError if the metrics are to be at an address that is not this machine's.

    A port that is taken is no reason: another one is used, and announced.
    """
    if job.metrics.port is None:
        return
    with socket.socket() as probe:
        try:
            probe.bind((job.metrics.host, 0))
        except OSError as error:
            raise UserError(
                f"metrics.host = {job.metrics.host} is no address of this machine "
                f"({error.strerror}); use 127.0.0.1, or 0.0.0.0 for all that it has"
            ) from None


def free_memory() -> int | None:
    """What the kernel can give away, or the container may still take, whichever is less."""
    found = [free for free in (_available(), _left_to_group()) if free is not None]
    return min(found, default=None)


def _available() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * _KB
    return None


def _left_to_group(
    mounted: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """To the group of this process, and to those that it is in: each of them may have a limit."""
    found = [
        _left_to(group, files)
        for root, group, files in _groups(mounted, own)
        for group in (group, *group.parents)
        if group.is_relative_to(root)
    ]
    return min((left for left in found if left is not None), default=None)


def _groups(mounted: Path, own: Path) -> Iterator[tuple[Path, Path, _Files]]:
    """The root of those of one kind, the group of this process, and their files. A container sees
    its own as the root, and may be told a path that is not there.
    """
    with suppress(OSError, ValueError):  # a system that tells nothing, or something else
        for line in own.read_text().splitlines():
            _, kinds, inside = line.split(":", 2)
            if not kinds:
                yield mounted, mounted / inside.lstrip("/"), _UNIFIED
            elif "memory" in kinds.split(","):
                root = mounted / "memory"
                yield root, root / inside.lstrip("/"), _OLDER


def _left_to(group: Path, files: _Files) -> int | None:
    """What was read from files and not lately gives way to whoever wants memory."""
    with suppress(OSError, ValueError):  # "max" is no number, and no limit
        limit = int((group / files.limit).read_text())
        used = int((group / files.used).read_text())
        stat = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        gives_way = sum(int(value) for name, value in stat if name == files.gives_way)
        return max(0, limit - max(0, used - gives_way))
    return None


def _free_disk(folder: Path) -> int | None:
    """Of the nearest folder that is there."""
    with suppress(OSError):
        place = folder.absolute()
        while not place.exists():
            place = place.parent
        found = os.statvfs(place)
        return found.f_bavail * found.f_frsize
    return None
