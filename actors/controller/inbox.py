"""What a controller has been told and has still to handle.

An event is in the journal before its sender knows that it has arrived. A sender that hears nothing
sends it again, so no death of the controller loses one; doubled events are harmless.
"""

import queue
import threading
from collections.abc import Callable, Iterable

from remesh.actors.history.journal_writer import JournalWriter
from remesh.orchestrator.control.words.events import Event


class Inbox:
    """`put` is called from any thread. The order of the inbox is that of the journal, in which
    `line` is the number of the event that was taken out last, of the moment `at_s`.
    """

    def __init__(self, journal: JournalWriter, now_s: Callable[[], float]) -> None:
        self._journal = journal
        self._now_s = now_s
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Event, float, int] | OSError] = queue.SimpleQueue()
        self.line, self.at_s = -1, 0.0

    def put(self, event: Event) -> None:
        self.put_all([event])

    def put_all(self, events: Iterable[Event]) -> None:
        """One after the other, with nothing of anybody else in between."""
        with self._lock:
            now_s = self._now_s()
            try:
                for event in events:
                    line = self._journal.event(event, now_s)
                    self._waiting.put((event, now_s, line))
            except OSError as error:
                self._waiting.put(error)

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
        event, self.at_s, self.line = waiting
        return event, self.at_s
