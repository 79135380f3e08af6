"""How long steps and checkpoints take, as counts in fixed bounds."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import StepRecord

STEP_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
SAVE_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
RECENT_STEPS = 512


@dataclass(slots=True, kw_only=True)
class Histogram:
    """`counts[i]` is how many lasted up to `bounds_s[i]` and no less; the last is those beyond."""

    bounds_s: tuple[float, ...]
    counts: list[int]
    sum_s: float = 0.0

    def observe(self, duration_s: float) -> None:
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s


def histogram(bounds_s: tuple[float, ...]) -> Histogram:
    return Histogram(bounds_s=bounds_s, counts=[0] * (len(bounds_s) + 1))


@dataclass(slots=True, kw_only=True)
class SaveTimes:
    """A checkpoint takes from the end of its step to its commit. `saved_at_s`: the newest commit.

    `recent` are the moments at which the last steps ended; for an older one the moment counts at
    which the first files of its checkpoint came in, kept in `came_s`.
    """

    took_s: Histogram = field(default_factory=lambda: histogram(SAVE_BOUNDS_S))
    failed: int = 0
    saved_at_s: float | None = None
    saved_step: int | None = None
    failed_step: tuple[int, int] | None = None
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    came_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def begin(self, state: State) -> None:
        self.saved_step = state.checkpoints.newest_step
        self.came_s.clear()

    def step(self, record: StepRecord) -> None:
        self.recent.append((record.step, record.ended_s))

    def abandon(self, from_step: int) -> None:
        """A generation starts from here: saves of later steps are not committed any more."""
        self.came_s = {key: at_s for key, at_s in self.came_s.items() if key[1] <= from_step}

    def note(self, event: ev.Event, now_s: float, state: State) -> None:
        if isinstance(event, ev.FilesSaved):
            if state.lineage.holds(event.generation, event.step):
                self.came_s.setdefault((event.generation, event.step), now_s)
        elif isinstance(event, (ev.SaveFailed, ev.CommitFailed)):
            self.failed += self.failed_step != (event.generation, event.step)
            self.failed_step = (event.generation, event.step)
        elif isinstance(event, ev.CheckpointCommitted):
            self._note_commit(event, now_s, state)
        self.saved_step = state.checkpoints.newest_step

    def _note_commit(self, event: ev.CheckpointCommitted, now_s: float, state: State) -> None:
        if state.checkpoints.newest_step != event.step or self.saved_step == event.step:
            return
        came_s = self.came_s.get((event.generation, event.step), now_s)
        ends = (ended_s for step, ended_s in reversed(self.recent) if step == event.step)
        self.took_s.observe(max(0.0, now_s - next(ends, came_s)))
        self.saved_at_s = now_s
        self.came_s = {key: at_s for key, at_s in self.came_s.items() if key[1] > event.step}
