"""Whether a trainer makes progress in its own terms.

A fixed limit lost: what is long for one job is a step of another. So the longest time that a rank
stood at one place so far, in this phase of this generation, says how long is too long. A wait for
storage is no phase of this kind: it has limits of its own, by what comes in.

A step that takes three times as long as usual is looked at sooner: a rank that stands still in it
and uses no processor either waits for another, or hangs. Which of the two is for the controller to
say, who hears all of them; one that computes, however slowly, is told of late only.
"""

import statistics
from collections import deque
from dataclasses import dataclass

OVERRUN_STEPS = 3  # times the usual step
OVERRUN_GAPS = 3  # times the longest that it has stood at one place so far
OVERRUN_PATIENCES = 4  # that it stands still at least; as long as a node may be silent, and more
USUAL_STEPS = 8  # the newest, whose median is the usual one
ENOUGH_STEPS = 3
LONGEST_GAPS = 10
LEAST_PATIENCES = 10
FIRST_PATIENCES = 120  # before anything is known: a first step may compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a rank stands, from its stamps."""

    generation: int
    step: int
    operation: int
    phase: int


class Progress:
    """Of one rank. `now_s` is in time in which the observer and the rank could run."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._standing: Whereabouts | None = None
        self._since_s = 0.0
        self._longest_s: dict[int, float] = {}
        self._told = False
        self._moved = False
        self._steps_s: deque[float] = deque(maxlen=USUAL_STEPS)
        self._step_since_s = 0.0

    def silent_s(self, standing: Whereabouts, now_s: float, *, at_work: bool) -> float | None:
        """How long it has stood here, if that is too long; told once a place.

        `at_work`: it is inside a step. Elsewhere it may have nothing to do, or wait for storage.
        Where it stands as a generation begins is from the one before, until it moves.
        """
        before = self._standing
        is_new = before is None or before.generation != standing.generation
        if is_new:
            self._longest_s, self._moved = {}, False
            self._steps_s.clear()
        if before != standing or not at_work:
            if before is not None and not is_new and before != standing:
                self._note(before.phase, now_s - self._since_s)
            if before is None or is_new or before.step != standing.step:
                self._begin_step(now_s, known=before is not None and not is_new)
            self._standing, self._since_s, self._told = standing, now_s, False
            return None
        stood_s = now_s - self._since_s
        if self._told or not self._moved or stood_s <= self.limit_s(standing.phase):
            return None
        self._told = True
        return stood_s

    def overrun_s(self, now_s: float) -> float | None:
        """How long it has stood where `silent_s` saw it last, if its step takes far too long."""
        standing, stood_s = self._standing, now_s - self._since_s
        longest_s = self._longest_s.get(standing.phase) if standing is not None else None
        if longest_s is None or len(self._steps_s) < ENOUGH_STEPS:
            return None
        usual_s = statistics.median(self._steps_s)
        least_s = max(OVERRUN_PATIENCES * self._patience_s, OVERRUN_GAPS * longest_s)
        overruns = now_s - self._step_since_s > OVERRUN_STEPS * usual_s
        return stood_s if overruns and stood_s > least_s else None

    def limit_s(self, phase: int) -> float:
        """In doublings of the least one: ranks that wait for each other have nearly the same gaps,
        and are to tell at nearly the same time.
        """
        longest_s = self._longest_s.get(phase)
        if longest_s is None:
            return FIRST_PATIENCES * self._patience_s
        limit_s = LEAST_PATIENCES * self._patience_s
        while limit_s < LONGEST_GAPS * longest_s:
            limit_s *= 2
        return limit_s

    def _begin_step(self, now_s: float, *, known: bool) -> None:
        """`known` is the length of the step before: its begin was seen."""
        if known:
            self._steps_s.append(now_s - self._step_since_s)
        self._step_since_s = now_s

    def _note(self, phase: int, gap_s: float) -> None:
        self._longest_s[phase] = max(self._longest_s.get(phase, 0.0), gap_s)
        self._moved = True
