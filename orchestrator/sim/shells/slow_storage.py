"""The simulated storage: how long a read or a write takes, and when nothing of it moves."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from remesh.orchestrator.sim.shells.agenda import Agenda

Soon = Callable[[float, Callable[[], None]], None]


@dataclass(slots=True)
class SlowStorage:
    """`times` as long as a quick one takes for everything. Until `still_until_s` nothing is done.

    What was begun before a standstill ends after it. Until `full_until_s` nothing can be written.
    So many commits as `hangs` get no answer ever. `claim` is the number of the run's newest start.
    """

    agenda: Agenda
    chance: Random
    times: float = 1.0
    still_until_s: float = 0.0
    full_until_s: float = 0.0
    hangs: int = 0
    claim: int = 1

    @property
    def is_full(self) -> bool:
        return self.agenda.now_s < self.full_until_s

    def run(self, soon: Soon, quick_s: float, done: Callable[[], None]) -> None:
        """Calls `done` after what takes `quick_s` on a quick storage. `soon` waits for somebody."""

        def try_to_end() -> None:
            left_s = self.still_until_s - self.agenda.now_s
            if left_s > 0:
                soon(left_s + self.chance.uniform(0.0, 0.5), try_to_end)
            else:
                done()

        soon(quick_s * self.times, try_to_end)

    def stand_still(self, for_s: float) -> None:
        self.still_until_s = max(self.still_until_s, self.agenda.now_s + for_s)
