"""Sends a rank's snapshots on to its buddy: a vault on another node, best in another domain.

One thread a lease, beside the one that seals: a buddy that is slow or dead holds up the safety of
snapshots, never the sealing of the next one. What goes, and in which order, is the shelf's to say.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass

from remesh.actors.vault.kept_shelf import SealedSlot
from remesh.actors.vault.messages import Granted, KeepCopies, Message, PutCopy
from remesh.actors.vault.wire import Line, VaultError
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.vault.shelf_words import Claim
from remesh.orchestrator.vault.vault_words import GenerationOver, NowStable
from remesh.parallel.threads import heard_thread

SLOWEST_BYTES_S = 10e6  # a vault that takes in less than that is of no use


@dataclass(frozen=True, slots=True, kw_only=True)
class Buddy:
    """Where copies go. How long that may take follows from their size and from `timers`."""

    address: str
    token: str
    timers: Timers


@dataclass(frozen=True, slots=True)
class _Copy:
    number: int
    snapshot: SealedSlot


class Replica:
    """`taken` is called once the snapshot that was sent last is sealed at the buddy, `refused` with
    why none will be any more: without a reason, because the generation is over.

    Both are called by its own thread.
    """

    def __init__(
        self,
        buddy: Buddy,
        claim: Claim,
        *,
        num_slots: int,
        taken: Callable[[], None],
        refused: Callable[[str], None],
    ) -> None:
        self._buddy = buddy
        self._claim = claim
        self._num_slots = num_slots
        self._taken = taken
        self._refused = refused
        self._queue: queue.SimpleQueue[_Copy | NowStable | None] = queue.SimpleQueue()
        self._line: Line | None = None
        self._thread = heard_thread(self._run, name="replica", failed=self._fail)

    def start(self) -> None:
        self._thread.start()

    def send(self, number: int, snapshot: SealedSlot) -> None:
        self._queue.put(_Copy(number, snapshot))

    def stable(self) -> None:
        """The buddy may forget earlier generations too."""
        self._queue.put(NowStable())

    def end(self) -> None:
        """Nothing more will be handed over. Repeatable."""
        self._queue.put(None)

    def join(self, limit_s: float) -> None:
        """Wait until what was handed over is sent, for as long as the limit."""
        self._thread.join(limit_s)
        if self._line:
            self._line.close()

    def _run(self) -> None:
        try:
            line = self._line = self._opened()
            while line and (work := self._queue.get()):
                self._handle(line, work)
        except OSError as error:
            self._refused(f"{error}" or type(error).__name__)
        finally:
            if self._line:
                self._line.close()

    def _fail(self, error: Exception) -> None:
        self._refused(f"{type(error).__name__}: {error}")

    def _opened(self) -> Line | None:
        """None if the buddy takes nothing of this generation any more."""
        timers, claim = self._buddy.timers, self._claim
        line = Line.open(self._buddy.address, self._buddy.token, timers.form_s)
        asked = KeepCopies(
            generation=claim.generation,
            held=claim.held,
            size_bytes=claim.size_bytes,
            from_step=claim.from_step,
            slots=self._num_slots,
        )
        return line if self._is_granted(line.ask(asked, self._limit_s)) else None

    def _handle(self, line: Line, work: _Copy | NowStable) -> None:
        if isinstance(work, NowStable):
            line.send(work)
            return
        snapshot = work.snapshot
        put = PutCopy(slot=work.number, step=snapshot.kept.step, digest=snapshot.proof.digest)
        line.send(put, snapshot.memory.shard)
        if self._is_granted(line.answer(self._limit_s)):
            self._taken()

    def _is_granted(self, answer: Message) -> bool:
        match answer:
            case Granted():
                return True
            case GenerationOver():
                self._refused("")
                return False
            case _:
                raise VaultError(f"the buddy says {answer}, which is no answer to a copy")

    @property
    def _limit_s(self) -> float:
        """Until the buddy has made room for a snapshot, or has proven one."""
        return self._buddy.timers.form_s + self._claim.size_bytes / SLOWEST_BYTES_S
