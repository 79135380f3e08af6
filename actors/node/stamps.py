"""Progress stamps: what a worker and its node's agent tell each other without a message.

One small memory-mapped file a worker, in a folder that the agent removes. Every field is one
aligned 64-bit word with a single writer, so a frozen or killed process leaves the last whole value.
The worker writes its beat and where it stands; the agent writes the lease that keeps the worker
alive. Times are CLOCK_MONOTONIC in nanoseconds, shared by the processes of one machine.
"""

import mmap
import os
import tempfile
import time
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Self

from remesh.actors.node.private_files import make_folder, open_file, opened
from remesh.actors.node.processes import Process, kill_same, look


class Field(IntEnum):
    PID = 0
    BEAT_NS = 1
    LEASE_NS = 2
    GENERATION = 3
    STEP = 4
    OPERATION = 5
    PHASE = 6
    STARTED = 7
    INCARNATION = 8


SIZE_BYTES = 72
VAULT = "vault"  # whose stamps they are, where the others are of workers


def folder_of(run: str, node: str) -> Path:
    """The folder of one run's stamps on one node, in the node's own temporary folder."""
    return Path(tempfile.gettempdir(), f"remesh-{run}-{node}")


def vault_folder_of(run: str, node: str) -> Path:
    """The folder of the vault's stamps, beside that of the workers'."""
    return Path(f"{folder_of(run, node)}.vault")


class Stamps:
    """The words of one worker, mapped for reading and writing."""

    def __init__(self, worker: str, memory: mmap.mmap) -> None:
        self.worker = worker
        self._words = memoryview(memory).cast("q")

    @classmethod
    def create(cls, folder: Path, worker: str, pid: int, *, incarnation: int = 0) -> Self:
        """The stamps of a process that begins; the folder is made by whoever comes first.

        `incarnation` is that of the controller which has it started.
        """
        make_folder(folder)
        process = look(pid)
        assert process, pid
        temporary = f".{worker}"
        with opened(folder) as own:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=own)
            descriptor = open_file(
                folder / temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, folder=own
            )
            os.truncate(descriptor, SIZE_BYTES)
            stamps = cls(worker, _mapped(descriptor))
            now_ns = time.monotonic_ns()
            stamps[Field.PID], stamps[Field.STARTED] = pid, process.started
            stamps[Field.INCARNATION] = incarnation
            stamps[Field.BEAT_NS], stamps[Field.LEASE_NS] = now_ns, now_ns
            os.replace(temporary, worker, src_dir_fd=own, dst_dir_fd=own)
        return stamps

    @classmethod
    def open_all(cls, folder: Path, known: dict[str, Self]) -> dict[str, Self]:
        """The stamps of every worker that lives; those in `known` are kept, not mapped anew.

        The files of the dead are removed: their pids will be other processes' one day.
        """
        living = {}
        with opened(folder) as own:
            for name in os.listdir(own):  # noqa: PTH208 - of an open folder
                if name.startswith("."):
                    continue
                with suppress(OSError, ValueError):  # gone meanwhile, or no stamps
                    stamps = known.get(name)
                    if stamps is None:
                        descriptor = open_file(folder / name, os.O_RDWR, folder=own)
                        stamps = cls(name, _mapped(descriptor))
                    if stamps.process():
                        living[name] = stamps
                    else:
                        os.unlink(name, dir_fd=own)
        return living

    def __getitem__(self, field: Field) -> int:
        return self._words[field]

    def __setitem__(self, field: Field, value: int) -> None:
        self._words[field] = value

    def process(self) -> Process | None:
        """The worker's process, None once it is gone; another user's is no worker."""
        found = look(self[Field.PID])
        is_it = found and (found.started, found.owner) == (self[Field.STARTED], os.geteuid())
        return found if is_it else None

    def kill(self) -> bool:
        """SIGKILL to the worker's process; whether it was there."""
        process = self.process()
        return process is not None and kill_same(process)

    def age_s(self, field: Field) -> float:
        """Seconds since the time in this field."""
        return (time.monotonic_ns() - self[field]) / 1e9


def _mapped(descriptor: int) -> mmap.mmap:
    """Closes the descriptor. Raises: ValueError if the file is too short."""
    try:
        return mmap.mmap(descriptor, SIZE_BYTES)
    finally:
        os.close(descriptor)
