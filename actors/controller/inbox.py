"""What a controller has been told and has still to handle.

An event is in the journal before its sender knows that it has arrived. A sender that hears nothing
sends it again, so no death of the controller loses one; doubled events are harmless.
"""

import queue
import threading
from collections.abc import Callable

from remesh.actors.history.journal_files import JournalWriter
from remesh.orchestrator.control.words.events import Event


class Inbox:
    """`put` is called from any thread. The order of the inbox is that of the journal."""

    def __init__(self, journal: JournalWriter, now_s: Callable[[], float]) -> None:
        self._journal = journal
        self._now_s = now_s
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Event, float] | OSError] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        with self._lock:
            now_s = self._now_s()
            try:
                self._journal.event(event, now_s)
            except OSError as error:
                self._waiting.put(error)
            else:
                self._waiting.put((event, now_s))

    def write_if_empty(self, write: Callable[[float], None]) -> bool:
        """Whether nothing waits: then what `write` adds stands after all that was handled."""
        with self._lock:
            empty = self._waiting.empty()
            if empty:
                write(self._now_s())
            return empty

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
        return waiting
