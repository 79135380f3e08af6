"""Sends a rank's snapshots on to its buddy: a vault on another node, best in another domain.

One thread a lease, beside the one that seals: a buddy that is slow or dead holds up the safety of
snapshots, never the sealing of the next one.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass

from remesh.actors.vault.messages import KeepCopies, NowStable, PutCopy
from remesh.actors.vault.shelf import Claim, Sealed
from remesh.actors.vault.wire import Line
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.threads import heard_thread

SLOWEST_BYTES_S = 10e6  # a vault that takes in less than that is of no use


@dataclass(frozen=True, slots=True, kw_only=True)
class Buddy:
    """Where copies go. How long that may take follows from their size and from `timers`."""

    address: str
    token: str
    timers: Timers


class Replica:
    """`safe` is called once a snapshot is sealed at the buddy, `lost` with why it never will be.

    Both are called by its own thread.
    """

    def __init__(
        self,
        buddy: Buddy,
        claim: Claim,
        *,
        num_slots: int,
        safe: Callable[[int, Sealed], None],
        lost: Callable[[str], None],
    ) -> None:
        self._buddy = buddy
        self._claim = claim
        self._num_slots = num_slots
        self._safe = safe
        self._lost = lost
        self._queue: queue.SimpleQueue[tuple[int, Sealed] | None] = queue.SimpleQueue()
        self._line: Line | None = None
        self._ended = False
        self._thread = heard_thread(self._run, name="replica", failed=self._fail)

    def start(self) -> None:
        self._thread.start()

    def send(self, number: int, snapshot: Sealed) -> None:
        self._queue.put((number, snapshot))

    def stable(self) -> None:
        """The buddy may forget earlier generations too."""
        self._queue.put(None)

    def finish(self, limit_s: float) -> None:
        """Send what was handed over, within the limit, and end."""
        self._ended = True
        self._queue.put(None)
        self._thread.join(limit_s)
        if self._line:
            self._line.close()

    def _run(self) -> None:
        try:
            line = self._line = self._opened()
            while not (self._ended and self._queue.empty()):
                self._handle(line, self._queue.get())
        except OSError as error:
            self._lost(f"{error}" or type(error).__name__)
        finally:
            if self._line:
                self._line.close()

    def _fail(self, error: Exception) -> None:
        self._lost(f"{type(error).__name__}: {error}")

    def _opened(self) -> Line:
        timers, claim = self._buddy.timers, self._claim
        line = Line.open(self._buddy.address, self._buddy.token, timers.form_s)
        asked = KeepCopies(
            generation=claim.generation,
            held=claim.held,
            size_bytes=claim.size_bytes,
            from_step=claim.from_step,
            slots=self._num_slots,
        )
        line.ask(asked, self._limit_s)
        return line

    def _handle(self, line: Line, work: tuple[int, Sealed] | None) -> None:
        if work is None:
            if not self._ended:
                line.send(NowStable())
            return
        number, snapshot = work
        if not snapshot.is_there:
            return
        put = PutCopy(slot=number, step=snapshot.step, digest=snapshot.digest)
        line.send(put, snapshot.memory.shard)
        line.answer(self._limit_s)
        self._safe(number, snapshot)

    @property
    def _limit_s(self) -> float:
        """Until the buddy has made room for a snapshot, or has proven one."""
        return self._buddy.timers.form_s + self._claim.size_bytes / SLOWEST_BYTES_S
