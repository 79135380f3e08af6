"""What a driver goes by while its run's controller does not answer.

Ray says nothing for a minute when the head of the cluster is gone, and ends the process then. And a
controller that reads a long journal answers nobody: what tells that it lives is its beat.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from remesh.actors.run.liveness import last_word_s
from remesh.parallel.doors.addresses import answers, parted

LOOK_S = 1.0
GONE_LOOKS = 4  # in a row, a second apart, while the controller does not answer
GONE_LOOKS_ANSWERED = 20  # while it does: a head may be started again


class HeadWatch:
    """Whether the head of a cluster is gone: nobody has its address any more.

    One that stands still keeps its address, and one that is started again comes back to it.
    """

    def __init__(
        self, is_there: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_there = is_there
        self._clock = clock
        self._looked_s = clock()
        self._missed = 0
        self.is_gone = False

    @classmethod
    def of_this_cluster(cls) -> Self:
        """Of the one that this process is connected to."""
        import ray  # noqa: PLC0415

        where = parted(ray.get_runtime_context().gcs_address)
        return cls(lambda: answers(where, LOOK_S))

    def look(self, *, answered: bool) -> bool:
        """Whether it is gone. Cost: a connection a second, and the time that it takes to fail."""
        if not self.is_gone and self._clock() - self._looked_s >= LOOK_S:
            self._missed = 0 if self._is_there() else self._missed + 1
            self._looked_s = self._clock()
            self.is_gone = self._missed >= (GONE_LOOKS_ANSWERED if answered else GONE_LOOKS)
        return self.is_gone


class WordsOfLife:
    """Of a run's controller, in its folder. They have ceased when none has come for `limit_s`."""

    def __init__(
        self, run_dir: Path, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_dir = run_dir
        self._limit_s = limit_s
        self._clock = clock
        self._word_s = last_word_s(run_dir)
        self._heard_s = clock()

    def have_ceased(self) -> bool:
        word_s = last_word_s(self._run_dir)
        if word_s != self._word_s:
            self._word_s, self._heard_s = word_s, self._clock()
        return self._clock() - self._heard_s >= self._limit_s
