"""The moments that the controller waits for, and those that have come."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Deadlines:
    """What the controller waits for, as moments on its clock.

    All starts last equally long, and so do all ends: the first entry is the earliest. `cool_s` is
    the moment at which the next quarantine ends, `judge_s` that at which those who make no progress
    have been heard, `pause_s` that before which no further mesh is tried.
    """

    phase_s: float | None = None
    gather_s: float | None = None
    cool_s: float | None = None
    judge_s: float | None = None
    pause_s: float | None = None
    starting: dict[str, float] = field(default_factory=dict)
    ending: dict[str, float] = field(default_factory=dict)

    def earliest_s(self) -> float | None:
        first = [next(iter(due.values())) for due in (self.starting, self.ending) if due]
        moments = (self.phase_s, self.gather_s, self.cool_s, self.judge_s, self.pause_s)
        first += [due_s for due_s in moments if due_s is not None]
        return min(first, default=None)

    def forget(self, worker: str) -> None:
        self.starting.pop(worker, None)
        self.ending.pop(worker, None)


def expired(due: dict[str, float], now_s: float) -> list[str]:
    """The names whose moment has come, earliest first."""
    names = []
    for name, due_s in due.items():
        if due_s > now_s:
            break
        names.append(name)
    return names
