"""The moments that the controller waits for, and those that have come."""

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Due:
    """Names that are waited for, each until a moment of its own.

    `queue` is a heap; what stands in it otherwise than in `at` is out of date, and never in front.
    """

    at: dict[str, float] = field(default_factory=dict)
    queue: list[tuple[float, str]] = field(default_factory=list)

    def __setitem__(self, name: str, at_s: float) -> None:
        self.at[name] = at_s
        heapq.heappush(self.queue, (at_s, name))
        self._drop_old()

    def forget(self, name: str) -> None:
        if self.at.pop(name, None) is not None:
            self._drop_old()

    def clear(self) -> None:
        self.at.clear()
        self.queue.clear()

    def earliest_s(self) -> float | None:
        return self.queue[0][0] if self.queue else None

    def expired(self, now_s: float) -> list[str]:
        """The names whose moment has come, earliest first."""
        if not self.queue or self.queue[0][0] > now_s:
            return []
        come = sorted((at_s, name) for name, at_s in self.at.items() if at_s <= now_s)
        return [name for _, name in come]

    def put_off(self, by_s: float, not_before_s: float = 0.0) -> None:
        """All of them come so much later, and none before that moment."""
        self.at = {name: max(at_s + by_s, not_before_s) for name, at_s in self.at.items()}
        self.queue = [(at_s, name) for name, at_s in self.at.items()]
        heapq.heapify(self.queue)

    def _drop_old(self) -> None:
        while self.queue and self.at.get(self.queue[0][1]) != self.queue[0][0]:
            heapq.heappop(self.queue)


@dataclass(slots=True, kw_only=True)
class Deadlines:
    """What the controller waits for, as moments on its clock.

    `phase_s` ends the phase, `excused_s` of it for short standstills so far. `gather_s` ends the
    wait for more workers, `cool_s` the next quarantine, and `commit_s` the wait for the commit that
    is due first. At `judge_s` those who make no progress have been heard, and before `pause_s` no
    further mesh is tried.
    """

    phase_s: float | None = None
    excused_s: float = 0.0
    gather_s: float | None = None
    cool_s: float | None = None
    judge_s: float | None = None
    pause_s: float | None = None
    commit_s: float | None = None
    starting: Due = field(default_factory=Due)
    ending: Due = field(default_factory=Due)

    def earliest_s(self) -> float | None:
        moments = (
            self.phase_s,
            self.gather_s,
            self.cool_s,
            self.judge_s,
            self.pause_s,
            self.commit_s,
            self.starting.earliest_s(),
            self.ending.earliest_s(),
        )
        return min((at_s for at_s in moments if at_s is not None), default=None)

    def forget(self, worker: str) -> None:
        self.starting.forget(worker)
        self.ending.forget(worker)

    def wait(self, until_s: float | None) -> None:
        """For the end of the phase, which has had no standstill yet."""
        self.phase_s, self.excused_s = until_s, 0.0

    def excuse_others(self, for_s: float) -> None:
        """Nobody could be heard for so long: what is waited for in any phase comes later."""
        if self.gather_s is not None:
            self.gather_s += for_s
        if self.judge_s is not None:
            self.judge_s += for_s
        self.starting.put_off(for_s)
        self.ending.put_off(for_s)

    def clear(self) -> None:
        """Nothing is waited for any more."""
        self.excused_s = 0.0
        self.phase_s = self.gather_s = self.cool_s = None
        self.judge_s = self.pause_s = self.commit_s = None
        self.starting.clear()
        self.ending.clear()
