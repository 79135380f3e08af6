"""Processes and disks that are ill without being dead: hung trainers, processes that no kill ends.

An agent sees a trainer that makes no progress by its stamps, while its process beats. It tells of
all of them that stand still: of the one that hangs, and of those that wait for it in a collective;
early where they use no processor, as one that waits does, and one that hangs may or may not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.events import Event, WorkerErred, WorkerFrozen, WorkerStuck
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.sim_host import Host
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.worker.seat import Stance

HUNG_AT, WAITING_AT = 3, 7  # operations of a step
STUCK = 10.0  # patiences
AT_REST = 4.0
SPINS = 0.5


@dataclass(slots=True, eq=False)
class Ailing:
    """`undying` are the processes that no kill ends while they hang in the kernel, `doomed` those
    of them that were killed: they go when they come back. `accused` are healthy ones of which
    somebody has said otherwise. `trouble_s` is the moment at which the last trouble of a process
    or a node is over.
    """

    world: World
    hosts: Mapping[str, Host]
    processes: Mapping[str, SimProcess]
    meshes: Mapping[int, SimMesh]
    post: Callable[[str, Event], None]
    kill: Callable[[SimProcess, str], None]
    thaw: Callable[[SimProcess], None]
    trouble_s: dict[str, float] = field(default_factory=dict)
    undying: set[str] = field(default_factory=set)
    doomed: set[str] = field(default_factory=set)
    accused: set[str] = field(default_factory=set)

    def freeze(self, process: SimProcess, for_s: float) -> None:
        """Nothing of it runs, and its agent sees that."""
        self._stop(process, for_s)
        timers = self.world.timers
        silent_s = self.world.between(timers.stopped_s, 1.5 * timers.silent_s)
        self.world.agenda.after(silent_s, lambda: self._say_frozen(process, silent_s))

    def hang(self, process: SimProcess, for_s: float) -> None:
        """Its process beats, its trainer goes on with nothing. A parked one waits as it is."""
        if process.mesh is None:
            return
        self._stop(process, for_s)
        spins = self.world.chance.random() < SPINS
        self.say_stuck_later(but=process.name if spins else "")

    def say_stuck_later(self, but: str = "") -> None:
        """At the moments at which agents find that trainers make no progress."""
        settings, after = self.world.settings, self.world.agenda.after
        early_s = (AT_REST * settings.patience_s + 3 * settings.step_s) * 1.1
        after(early_s, partial(self.say_stuck, early_s, at_rest=True, but=but))
        stuck_s = (STUCK * settings.patience_s + settings.step_s) * 1.1
        after(stuck_s, partial(self.say_stuck, stuck_s))

    def say_stuck(self, silent_s: float, *, at_rest: bool = False, but: str = "") -> None:
        """Of all members of the newest mesh `but` one, if it has to wait for somebody."""
        for mesh in list(self.meshes.values())[-1:]:
            there = [m for m in mesh.members if m.in_mesh(mesh.generation)]
            nodes = {member.node for member in mesh.members}
            if not any(member.frozen for member in there) and mesh.reachable(nodes):
                continue
            for process in there:
                trains = process.seat.stance is Stance.TRAINING  # stamps say nothing elsewhere
                if trains and process.name != but:
                    self._say_stuck(process, silent_s, at_rest=at_rest)

    def _say_stuck(self, process: SimProcess, silent_s: float, *, at_rest: bool) -> None:
        if not self.hosts[process.node].is_heard:
            return
        word = WorkerStuck(
            worker=process.name,
            generation=process.generation,
            step=process.at_step or 0,
            operation=HUNG_AT if process.frozen else WAITING_AT,
            phase="training",
            silent_s=silent_s,
            at_rest=at_rest,
        )
        say = partial(self.post, process.node, word)
        self.world.agenda.after(self.world.between(0.0, 0.3), say)

    def end(self, process: SimProcess, reason: str) -> None:
        """What a kill does."""
        if process.name in self.undying and process.frozen:
            self.doomed.add(process.name)
        else:
            self.kill(process, f"ended: {reason}")

    def trouble(self, name: str, for_s: float) -> None:
        """For so long something is wrong with this process, or node."""
        until_s = self.world.agenda.now_s + for_s
        self.trouble_s[name] = max(self.trouble_s.get(name, 0.0), until_s)

    def err(self, form: Form) -> None:
        """Whoever of a new mesh is on a node with a bad disk fails before long."""
        for member in form.members:
            if self.hosts[member.node].bad_disk:
                process = self.processes[member.worker]
                process.soon(self.world.between(0.1, 1.5), partial(self._err, process))

    def _err(self, process: SimProcess) -> None:
        """Its last word says why."""
        error = "OSError: [Errno 5] Input/output error"
        word = WorkerErred(
            worker=process.name, generation=process.generation, error=error, user_error=False
        )
        self.post(process.node, word)
        self.kill(process, error)

    def _stop(self, process: SimProcess, for_s: float) -> None:
        process.frozen = True
        self.trouble(process.name, for_s)
        self.world.agenda.after(for_s, lambda: self._come_back(process))

    def _come_back(self, process: SimProcess) -> None:
        if process.name in self.doomed:
            self.kill(process, "ended at last")
        else:
            self.thaw(process)

    def _say_frozen(self, process: SimProcess, silent_s: float) -> None:
        if process.alive and process.frozen:
            self.post(process.node, WorkerFrozen(worker=process.name, silent_s=silent_s))
