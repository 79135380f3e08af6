"""The deaths of the simulated controller's process, and how another one takes its place.

What it was told is in the journal; what it could not be told is kept by those who have it to tell,
and told to the next one. The rest of the cluster goes on, at most for the length of its leases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from remesh.orchestrator.control.words.events import Event, WorkerFrozen, WorkerLost
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.world import World

AMID = 0.5


@dataclass(slots=True, eq=False)
class Outages:
    """`doomed_for_s` is set while the controller is to die at its next event. `life` numbers it."""

    world: World
    processes: Mapping[str, SimProcess]
    meshes: Mapping[int, SimMesh]
    tell: Callable[[Event], None]
    restart: Callable[[], None]
    life: int = 1
    away: bool = False
    doomed_for_s: float | None = None
    untold: list[Event] = field(default_factory=list)

    def strike(self, for_s: float) -> None:
        """The controller dies, now or at its next event, amid what it was about to do."""
        if self.away:
            return
        if self.world.chance.random() < AMID:
            self.doomed_for_s = for_s
        else:
            self.begin(for_s)

    def begin(self, for_s: float) -> None:
        self.away, self.doomed_for_s = True, None
        for mesh in self.meshes.values():
            mesh.lose_store()
        lease_s = self.world.timers.lease_s
        self.world.agenda.after(lease_s, partial(self._end_leases, self.life))
        self.world.agenda.after(for_s, self._end)

    def hear(self, event: Event) -> bool:
        """Whether the controller is there to be told; if not, it will be told later."""
        if self.away:
            self.untold.append(event)
        return not self.away

    def over(self, life: int) -> bool:
        """Whether the controller with this number is dead."""
        return self.away or self.life != life

    def _end_leases(self, life: int) -> None:
        if self.away and self.life == life:
            for process in self.processes.values():
                process.die()

    def _end(self) -> None:
        """The new controller finds out who has died, and is told the rest."""
        self.away = False
        self.life += 1
        self.restart()
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
