"""What a worker remembers of its steps until the controller has heard of them."""

import time
from collections import deque
from collections.abc import Callable

from remesh.orchestrator.control.words.events import Event, StepsDone
from remesh.orchestrator.control.words.records import StepRecord

EVERY_S = 1.0
REMEMBERED = 4096
PARK_MARGIN_S = 3.0


class Reporter:
    """Rank 0 reports once a second; every rank remembers the newest steps, in case rank 0 dies.

    Cost: bounded memory; messages do not grow with the step rate.
    """

    def __init__(self, *, worker: str, post: Callable[[Event], None]) -> None:
        self._worker = worker
        self._post = post
        self._records: deque[StepRecord] = deque(maxlen=REMEMBERED)
        self._unsent: list[StepRecord] = []
        self._generation = 0
        self._reports = False
        self._sent_s = 0.0

    def enter(self, generation: int, *, reports: bool) -> None:
        """Begin a generation, as the rank that reports or as one that only remembers."""
        self._generation, self._reports = generation, reports
        self._records.clear()  # told when the generation before was left, or abandoned since
        self._unsent, self._sent_s = [], 0.0

    def add(self, record: StepRecord) -> None:
        """The first record of a generation goes out at once: it ends a recovery."""
        self._records.append(record)
        if self._reports:
            self._unsent.append(record)
            if time.monotonic() - self._sent_s >= EVERY_S:
                self.flush()

    def flush(self) -> None:
        if self._unsent:
            records, self._unsent = tuple(self._unsent), []
            self._sent_s = time.monotonic()
            self._post(StepsDone(worker=self._worker, generation=self._generation, records=records))

    def since(self, heard_step: int | None) -> tuple[StepRecord, ...]:
        """The steps after the last one heard of; with None those of the last seconds."""
        if heard_step is not None:
            return tuple(record for record in self._records if record.step > heard_step)
        recent_s = time.time() - PARK_MARGIN_S
        return tuple(record for record in self._records if record.ended_s >= recent_s)
