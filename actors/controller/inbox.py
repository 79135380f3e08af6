"""What a controller has been told and has still to handle.

An event is in the journal before its sender knows that it has arrived. A sender that hears nothing
sends it again, so no death of the controller loses one; doubled events are harmless.

What comes while the journal is being written waits for it and goes there in one write, events of
one kind in one line. Where very many say something, each waits some milliseconds for the others:
the journal of a mesh of thousands is the smaller by that, and few ever wait.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from remesh.orchestrator.control.journal import LinePlace
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.events import Event

EVERY_S = 0.005  # a write, once there were
BURST = 64  # writes at once


class StormPace:
    """How long the next write of a storm waits for what else comes. Time is an argument."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Before a write that is asked for now; 0 for BURST of them after a while without any."""
        self._due_s = max(self._due_s, now_s) + EVERY_S
        return max(0.0, self._due_s - now_s - BURST * EVERY_S)


class EventWriter(Protocol):
    """A journal. Raises: OSError."""

    def events(self, events: list[Event], now_s: float) -> list[LinePlace]: ...


class Inbox:
    """`put` is called from any thread. The order of the inbox is that of the journal, in which
    `place` is that of the event that was taken out last, of the moment `at_s`.
    """

    def __init__(
        self,
        journal: EventWriter,
        now_s: Callable[[], float],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._journal = journal
        self._pause = pause
        self._pace = StormPace()
        self._now_s = now_s
        self._changes = threading.Condition()
        self._told: list[Event] = []
        self._num_told = self._num_written = 0
        self._writes = False
        self._failed: OSError | None = None
        self._waiting: queue.SimpleQueue[tuple[Event, float, LinePlace, bool] | OSError]
        self._waiting = queue.SimpleQueue()
        self.place, self.at_s, self.ends_line = LinePlace(-1), 0.0, True

    def put(self, event: Event) -> None:
        """For those who could not tell it to anybody else if it cannot be written."""
        with suppress(OSError):  # whoever takes events out hears of it, and the controller ends
            self._put([event], paced=False)

    def put_all(self, events: Iterable[Event]) -> None:
        """One after the other, with nothing of anybody else in between.

        Raises: OSError if they are not in the journal: they count for nothing.
        """
        self._put(list(events), paced=True)

    def get(self, timeout_s: float) -> tuple[Event, float] | None:
        """The oldest event with the moment of its arrival, None if there is none in time.

        Raises: OSError if the journal could not be written: what it does not hold is not handled.
        """
        try:
            waiting = self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(waiting, OSError):
            raise waiting
        event, self.at_s, self.place, self.ends_line = waiting
        return event, self.at_s

    def _put(self, events: list[Event], *, paced: bool) -> None:
        """Back once they are written, by whichever thread has come first."""
        with self._changes:
            self._told += events
            self._num_told += len(events)
            number = self._num_told
            self._changes.wait_for(lambda: self._num_written >= number or not self._writes)
            writes = self._num_written < number
            self._writes = self._writes or writes
        if writes:
            self._write_all(self._pace.wait_s(time.monotonic()) if paced else 0.0)
        if self._failed is not None:
            raise self._failed

    def _write_all(self, wait_s: float) -> None:
        """What all have told by then."""
        if wait_s:
            self._pause(wait_s)
        with self._changes:
            events, self._told = self._told, []
            number = self._num_told
        try:
            self._write(events)
        finally:
            with self._changes:
                self._num_written, self._writes = number, False
                self._changes.notify_all()

    def _write(self, events: list[Event]) -> None:
        """One that cannot be encoded, an error of ours, takes no other along."""
        if not events or self._failed is not None:
            return
        try:
            self._append(events, self._now_s())
        except OSError as error:
            self._failed = error
            self._waiting.put(error)
        except CodecError:
            logging.getLogger(__name__).exception("an event is left out of the journal")
            for event in events if len(events) > 1 else ():
                self._write([event])

    def _append(self, events: list[Event], now_s: float) -> None:
        places = self._journal.events(events, now_s)
        for event, place, after in zip(events, places, [*places[1:], None], strict=True):
            ends_line = after is None or after.line != place.line
            self._waiting.put((event, now_s, place, ends_line))
