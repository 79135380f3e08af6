"""Simulated time: actions that are due at moments, in one thread."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Agenda:
    """Runs actions in the order of their moments; of one moment, in the order of their entry."""

    now_s: float = 0.0
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _entries: int = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._entries += 1
        heapq.heappush(self._due, (self.now_s + max(delay_s, 0.0), self._entries, action))

    def step(self) -> bool:
        """Runs the next action; False if there is none."""
        if not self._due:
            return False
        self.now_s, _, action = heapq.heappop(self._due)
        action()
        return True
