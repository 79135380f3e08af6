"""What this machine has: processors, memory, room on disk and in shared memory."""

import os
import socket
from contextlib import suppress
from pathlib import Path

from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.fitting import Machine
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url

_SHARED = Path("/dev/shm")  # noqa: S108 - asked for its room only
_KB = 1024


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


def _left_to_group(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    with suppress(OSError, ValueError):  # "max" is no number, and no limit
        limit = int((group / "memory.max").read_text())
        return max(0, limit - int((group / "memory.current").read_text()))
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
