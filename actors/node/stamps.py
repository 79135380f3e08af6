"""Progress stamps: what a worker and its node's agent tell each other without a message.

One small memory-mapped file a worker, in a folder that the agent removes. Every field is one
aligned 64-bit word with a single writer, so a frozen or killed process leaves the last whole value.
The worker writes its beat and where it stands; the agent writes the lease that keeps the worker
alive. Times are CLOCK_MONOTONIC in nanoseconds, shared by the processes of one machine.
"""

import mmap
import tempfile
import time
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Self

import numpy as np

from remesh.actors.node.processes import Process, look


class Field(IntEnum):
    PID = 0
    BEAT_NS = 1
    LEASE_NS = 2
    GENERATION = 3
    STEP = 4
    OPERATION = 5
    PHASE = 6
    STARTED = 7


SIZE_BYTES = 64


def folder_of(run: str, node: str) -> Path:
    """The folder of one run's stamps on one node, in the node's own temporary folder."""
    return Path(tempfile.gettempdir(), f"remesh-{run}-{node}")


def vault_folder_of(run: str, node: str) -> Path:
    """The folder of the vault's stamps, inside of that of the workers' and passed over there."""
    return folder_of(run, node) / ".vault"


class Stamps:
    """The words of one worker, mapped for reading and writing."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.worker = path.name
        self._words = np.frombuffer(memory, dtype=np.int64)

    @classmethod
    def create(cls, folder: Path, worker: str, pid: int) -> Self:
        """The stamps of a process that begins; the folder is made by whoever comes first."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        process = look(pid)
        assert process, pid
        path = folder / worker
        temporary = folder / f".{worker}"
        temporary.write_bytes(b"\0" * SIZE_BYTES)
        stamps = cls._map(temporary)
        stamps.worker = worker
        now_ns = time.monotonic_ns()
        stamps[Field.PID], stamps[Field.STARTED] = pid, process.started
        stamps[Field.BEAT_NS], stamps[Field.LEASE_NS] = now_ns, now_ns
        temporary.replace(path)
        return stamps

    @classmethod
    def open_all(cls, folder: Path, known: dict[str, Self]) -> dict[str, Self]:
        """The stamps of every worker that lives; those in `known` are kept, not mapped anew.

        The files of the dead are removed: their pids will be other processes' one day.
        """
        living = {}
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            with suppress(FileNotFoundError):
                stamps = known.get(path.name) or cls._map(path)
                if stamps.process():
                    living[path.name] = stamps
                else:
                    path.unlink()
        return living

    @classmethod
    def _map(cls, path: Path) -> Self:
        with path.open("r+b") as file:
            return cls(path, mmap.mmap(file.fileno(), SIZE_BYTES))

    def __getitem__(self, field: Field) -> int:
        return int(self._words[field])

    def __setitem__(self, field: Field, value: int) -> None:
        self._words[field] = value

    def process(self) -> Process | None:
        """The worker's process, None once it is gone."""
        found = look(self[Field.PID])
        return found if found and found.started == self[Field.STARTED] else None

    def age_s(self, field: Field) -> float:
        """Seconds since the time in this field."""
        return (time.monotonic_ns() - self[field]) / 1e9
