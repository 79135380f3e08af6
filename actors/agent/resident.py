"""One process of a node, as its agent knows it: by its line, and by the kernel's handle for it."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from remesh.actors.node.link import AgentEnd
from remesh.actors.node.processes import Process, look
from remesh.actors.node.seats import AnySeat, RankSeat
from remesh.actors.node.stamps import VAULT, Stamps
from remesh.orchestrator.control.words.events import WorkerLost


@dataclass(slots=True, eq=False)
class Resident:
    """A rank or the vault. Without a `pid` it is asked for and not there yet.

    `number` tells it from one before it in the same seat. `generation` is the newest mesh that it
    was told to form, `parked_in` the newest that it has left or was told to leave. `died_at_s` is
    when the kernel told of its death, by the wall clock, `died_s` by the one that never jumps, and
    `code` how it ended, None until that is known.
    """

    number: int
    seat: AnySeat
    line: AgentEnd
    pid: int = 0
    descriptor: int = -1
    stamps: Stamps | None = None
    generation: int = 0
    parked_in: int = 0
    last_word: WorkerLost | None = None
    ends: bool = False
    died_at_s: float | None = None
    died_s: float = 0.0
    code: int | None = None

    @property
    def worker(self) -> str:
        """Empty for a vault."""
        return self.seat.worker if isinstance(self.seat, RankSeat) else ""

    @property
    def stamps_name(self) -> str:
        return self.worker or VAULT

    @property
    def is_there(self) -> bool:
        return self.descriptor >= 0 and self.died_at_s is None

    def born(self, pid: int, descriptor: int) -> None:
        self.pid, self.descriptor = pid, descriptor

    def process(self) -> Process | None:
        return look(self.pid) if self.is_there else None

    def kill(self) -> None:
        """SIGKILL by the kernel's handle: no other process is meant, and a frozen one ends too."""
        self.ends = True
        if self.descriptor >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def close(self) -> None:
        self.line.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
