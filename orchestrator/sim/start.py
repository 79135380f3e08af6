"""One start of a simulated run: a controller, its journal, its cluster, and the checks of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import Command, EndWorker
from remesh.orchestrator.control.words.events import ControllerRestarted, Event, Tick
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import ENDED
from remesh.orchestrator.sim.checks.coverage import Coverage
from remesh.orchestrator.sim.checks.ends import Ends
from remesh.orchestrator.sim.checks.health import Health
from remesh.orchestrator.sim.checks.invariants import Invariants
from remesh.orchestrator.sim.checks.whole_run import WholeRun
from remesh.orchestrator.sim.journal_lines import JournalLines
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.sim.surroundings.cluster import Cluster

TORN = 0.3
CRASHED = "crashed"


@dataclass(slots=True, eq=False)
class SimStart:
    """`over` is told once nobody acts for this start any more: it ended, crashed or was replaced.

    `trace`, `coverage` and `whole` are the run's. `heard_s` is the moment of the newest event.
    """

    world: World
    options: Options
    trace: list[str]
    coverage: Coverage
    whole: WholeRun
    voted: Callable[[int], None]
    claim: Callable[[], None]
    over: Callable[["SimStart"], None]
    journal: JournalLines = field(default_factory=JournalLines)
    deadline_s: float | None = None
    heard_s: float = 0.0
    kills: int = 0
    is_over: bool = False
    controller: Controller = field(init=False)
    invariants: Invariants = field(init=False)
    ends: Ends = field(init=False)
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.controller = Controller(self.options)
        self.world.vaults_known = lambda: self.controller.state.vaults.addresses
        self.cluster = self._cluster()
        cluster = self.cluster
        health = Health(
            agenda=self.world.agenda,
            network=cluster.network,
            hosts=cluster.hosts,
            processes=cluster.processes,
            accused=cluster.ailing.accused,
            trouble_s=cluster.ailing.trouble_s,
        )
        self.invariants = Invariants(self.controller, whole=self.whole, health=health)
        self.ends = Ends(health, self.world.storage)

    @property
    def number(self) -> int:
        return self.options.start

    @property
    def status(self) -> str:
        return self.controller.state.phase.value if self.has_ended else CRASHED

    @property
    def has_ended(self) -> bool:
        """The controller has said so."""
        return self.controller.state.phase in ENDED

    def leave(self) -> None:
        """Nobody acts for this start any more; what it has left running ends with its leases."""
        if not self.is_over:
            self.is_over = self.cluster.ended = True
            self.cluster.end_later()
            self.over(self)

    def _cluster(self) -> Cluster:
        settings, agenda, chance = self.world.settings, self.world.agenda, self.world.chance
        return Cluster(
            world=self.world,
            network=Network(
                agenda=agenda,
                chance=chance,
                doubled=settings.doubled,
                delayed=settings.delayed,
                lost=settings.lost,
                again_s=settings.patience_s / 4,
            ),
            tell=self._tell,
            voted=self._voted,
            knows=lambda node: node in self.controller.state.roster.nodes,
            restart=self._restart,
            crash=self.leave,
            claim_again=self.claim,
            claim=self.number,
        )

    def _tell(self, event: Event) -> None:
        if not self.is_over and self.cluster.outages.hear(event):
            self._handle(event)

    def _voted(self, generation: int, step: int) -> None:
        self.invariants.voted(generation)
        self.voted(step)

    def _handle(self, event: Event) -> None:
        now_s, outages = self.world.agenda.now_s, self.cluster.outages
        self.journal.append(event, now_s)
        if outages.doomed_for_s is not None and self.world.chance.random() < TORN:
            self._die_writing(event, outages.doomed_for_s)
            return
        self.heard_s = now_s
        self.coverage.told(self.controller.state, event, now_s)
        commands = self.controller.handle(event, now_s)
        self.coverage.decided(self.controller.moves, commands)
        self._note(event, commands)
        self.ends.note(event)
        self.kills += sum(isinstance(command, EndWorker) for command in commands)
        self.invariants.after(event, commands)
        self._carry_out(commands)
        if self.has_ended:
            self.invariants.at_end()
            self.ends.check(self.controller.state, now_s)
        if self.has_ended and not outages.away:
            self.leave()
        self._keep_deadline()

    def _carry_out(self, commands: list[Command]) -> None:
        """A controller that is to die does so amid them."""
        outages = self.cluster.outages
        doomed_for_s = outages.doomed_for_s
        if doomed_for_s is not None:
            commands = commands[: self.world.chance.randint(0, len(commands))]
        for command in commands:
            self.cluster.carry_out(command)
        if doomed_for_s is not None:
            outages.begin(doomed_for_s)
        else:
            self.cluster.vaults.move()

    def _die_writing(self, event: Event, for_s: float) -> None:
        """It dies before the line is whole: the event was never handled, and is sent again."""
        self.journal.tear(self.world.chance)
        self.cluster.outages.begin(for_s)
        self.cluster.outages.hear(event)

    def _restart(self) -> None:
        """A controller from the journal alone, in place of the one that died."""
        before = self.controller
        self.controller = self.journal.replayed(self.options, self.world.chance)
        self.journal.torn = ""
        if self.controller.state != before.state:
            raise InvariantError("a restarted controller is in another state")
        self.invariants.controller = self.controller
        self.deadline_s = None
        if self.has_ended:
            self.leave()
        else:
            down_s = self.world.agenda.now_s - self.heard_s
            self.cluster.tell(ControllerRestarted(down_s=down_s))

    def _keep_deadline(self) -> None:
        controller = self.controller
        deadline_s = controller.next_deadline_s()
        if deadline_s is None or deadline_s == self.deadline_s:
            return
        self.deadline_s = deadline_s

        def tick() -> None:
            if controller is not self.controller or controller.next_deadline_s() != deadline_s:
                return
            self.deadline_s = None
            self.cluster.tell(Tick())

        self.world.agenda.after(deadline_s - self.world.agenda.now_s, tick)

    def _note(self, event: Event, commands: list[Command]) -> None:
        phase = self.controller.state.phase
        self.trace.append(f"{self.world.agenda.now_s:9.3f} {event} -> {phase}")
        self.trace.extend(f"{'':9}   {command}" for command in commands)
