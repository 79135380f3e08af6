"""The deaths and standstills of the simulated controller, and how another one takes its place.

What it was told is in the journal; what it could not be told is kept by those who have it to tell,
and told to the next one, or later. The rest of the cluster goes on, at most for the length of its
leases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from remesh.orchestrator.control.words.events import (
    Event,
    StoodStill,
    Tick,
    WorkerFrozen,
    WorkerLost,
)
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.world import World

AMID = 0.5


@dataclass(slots=True, eq=False)
class Outages:
    """`doomed_for_s` is set while the controller is to die at its next event. `life` numbers it.

    `away` while there is none; `still` while it is there and does not run.
    """

    world: World
    processes: Mapping[str, SimProcess]
    meshes: Mapping[int, SimMesh]
    tell: Callable[[Event], None]
    restart: Callable[[], None]
    life: int = 1
    away: bool = False
    still: bool = False
    doomed_for_s: float | None = None
    absences: int = 0
    untold: list[Event] = field(default_factory=list)

    @property
    def absent(self) -> bool:
        return self.away or self.still

    def strike(self, for_s: float) -> None:
        """The controller dies, now or at its next event, amid what it was about to do."""
        if self.absent:
            return
        if self.world.chance.random() < AMID:
            self.doomed_for_s = for_s
        else:
            self.begin(for_s)

    def begin(self, for_s: float) -> None:
        self.away, self.doomed_for_s = True, None
        for mesh in self.meshes.values():
            mesh.lose_store()
        self._leases_run_out()
        self.world.agenda.after(for_s, self._end)

    def stand_still(self, for_s: float) -> None:
        """The controller does not run for a while, and then goes on as if nothing had been."""
        if self.absent:
            return
        self.still = True
        self._leases_run_out()
        self.world.agenda.after(for_s, partial(self._go_on, for_s))

    def hear(self, event: Event) -> bool:
        """Whether the controller is there to be told; if not, it will be told later."""
        if self.absent and not isinstance(event, Tick):
            self.untold.append(event)
        return not self.absent

    def over(self, life: int) -> bool:
        """Whether the controller with this number is dead."""
        return self.away or self.life != life

    def _leases_run_out(self) -> None:
        self.absences += 1
        lease_s = self.world.timers.lease_s
        self.world.agenda.after(lease_s, partial(self._end_leases, self.absences))

    def _end_leases(self, absence: int) -> None:
        if self.absent and self.absences == absence:
            for process in self.processes.values():
                process.die()

    def _end(self) -> None:
        """The new controller finds out who has died, and is told the rest."""
        self.away = False
        self.life += 1
        self.restart()
        self._tell_the_rest()

    def _go_on(self, for_s: float) -> None:
        self.still = False
        self.tell(StoodStill(for_s=for_s))
        self._tell_the_rest()

    def _tell_the_rest(self) -> None:
        untold, self.untold = self.untold, []
        for process in self.processes.values():
            if not process.alive:
                untold.append(WorkerLost(worker=process.name, cause="died meanwhile"))
        for event in untold:
            self.world.agenda.after(self.world.between(0.0, 0.3), partial(self._tell_late, event))

    def _tell_late(self, event: Event) -> None:
        """An agent tells only of those that are frozen still."""
        if not isinstance(event, WorkerFrozen) or self.processes[event.worker].frozen:
            self.tell(event)
