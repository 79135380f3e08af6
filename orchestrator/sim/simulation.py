"""One simulated run from one seed: cluster, faults, controller, and the checks of both."""

from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import encode, replay
from remesh.orchestrator.control.memory.generations import GenerationReport
from remesh.orchestrator.control.words.commands import Command
from remesh.orchestrator.control.words.events import ControllerRestarted, Event, RunStarted, Tick
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import ENDED
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.sim.cluster import Cluster
from remesh.orchestrator.sim.faults import (
    PlannedFault,
    draw_changes,
    draw_faults,
    draw_vault_faults,
    strike,
)
from remesh.orchestrator.sim.invariants import Invariants
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.world import LADDERS, WHOLE, Settings, World

MAX_SECONDS = 300.0
STARTUP_S = 3.0
HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """`seconds` are simulated. `trace` tells each event with what was decided."""

    seed: int
    status: str
    reason: str
    generations: tuple[GenerationReport, ...]
    steps: int
    events: int
    seconds: float
    faults: tuple[PlannedFault, ...]
    trace: tuple[str, ...]


class SimulationError(AssertionError):
    """An invariant was broken; the message names the seed, `trace` tells the story."""

    def __init__(self, message: str, trace: list[str]) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(slots=True, eq=False)
class Simulation:
    """Wires controller and cluster together."""

    seed: int
    settings: Settings
    faults: list[PlannedFault]
    agenda: Agenda = field(default_factory=Agenda)
    trace: list[str] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    struck: list[PlannedFault] = field(default_factory=list)
    deadline_s: float | None = None
    heard_s: float = 0.0
    controller: Controller = field(init=False)
    invariants: Invariants = field(init=False)

    def __post_init__(self) -> None:
        self.controller = Controller(self._options())
        self.invariants = Invariants(self.controller)

    def run(self) -> RunOutcome:
        try:
            return self._run()
        except AssertionError as error:
            raise SimulationError(f"seed {self.seed}: {error}", self.trace) from error

    def _run(self) -> RunOutcome:
        cluster = self._cluster()
        for _ in range(2):
            cluster.join()
        self.agenda.after(0.1, lambda: cluster.tell(RunStarted()))
        for fault in self.faults:
            if fault.at_step is None:
                self.agenda.after(STARTUP_S + fault.at_s, partial(self._strike, fault, cluster))
        while not cluster.ended and self.agenda.step():
            if self.agenda.now_s > MAX_SECONDS:
                phase = self.controller.state.phase
                raise InvariantError(f"still {phase} after {MAX_SECONDS:.0f} s")
        return self._outcome()

    def _options(self) -> Options:
        settings = self.settings
        return Options(
            steps=settings.steps,
            ladder=settings.ladder,
            min_workers=settings.min_workers,
            spares=settings.spares,
            max_failures=settings.max_failures,
            patience_s=settings.patience_s,
        )

    def _cluster(self) -> Cluster:
        chance = Random(self.seed)  # noqa: S311 - a simulation, not a secret

        def tell(event: Event) -> None:
            if cluster.outages.hear(event):
                self._handle(cluster, event)

        def voted(generation: int, step: int) -> None:
            self.invariants.voted(generation)
            for fault in self.faults:
                if fault.at_step == step and fault not in self.struck:
                    self.struck.append(fault)
                    delay_s = chance.choice([0.0, 0.02, 0.5])
                    self.agenda.after(delay_s, partial(self._strike, fault, cluster))

        def post(node: str, event: Event) -> None:
            cluster.post(node, event)

        world = World(self.agenda, chance, self.settings, post)
        cluster = Cluster(
            world=world,
            network=Network(
                agenda=self.agenda,
                chance=chance,
                doubled=self.settings.doubled,
                delayed=self.settings.delayed,
                lost=self.settings.lost,
                again_s=self.settings.patience_s / 4,
            ),
            tell=tell,
            voted=voted,
            knows=lambda node: node in self.controller.state.roster.nodes,
            restart=lambda: self._restart(cluster),
        )
        return cluster

    def _handle(self, cluster: Cluster, event: Event) -> None:
        now_s = self.agenda.now_s
        self.heard_s = now_s
        self.journal.append(encode(event, now_s))
        commands = self.controller.handle(event, now_s)
        self._tell(event, commands)
        self.invariants.after(event, commands)
        if self.controller.state.phase in ENDED and not cluster.ended:
            self.invariants.at_end()
        doomed_for_s = cluster.outages.doomed_for_s
        if doomed_for_s is not None:
            commands = commands[: cluster.world.chance.randint(0, len(commands))]
        for command in commands:
            cluster.carry_out(command)
        if doomed_for_s is not None:
            cluster.outages.begin(doomed_for_s)
        self._keep_deadline(cluster)

    def _restart(self, cluster: Cluster) -> None:
        """A controller from the journal alone, in place of the one that died."""
        before = self.controller
        self.controller = replay(self.journal, before.options)
        if self.controller.state != before.state:
            raise InvariantError("a restarted controller is in another state")
        self.invariants.controller = self.controller
        self.deadline_s = None
        if self.controller.state.phase in ENDED:
            cluster.ended = True
        else:
            cluster.tell(ControllerRestarted(down_s=self.agenda.now_s - self.heard_s))

    def _keep_deadline(self, cluster: Cluster) -> None:
        controller = self.controller
        deadline_s = controller.next_deadline_s()
        if deadline_s is None or deadline_s == self.deadline_s:
            return
        self.deadline_s = deadline_s

        def tick() -> None:
            alive = controller is self.controller and not cluster.outages.away
            if alive and controller.next_deadline_s() == deadline_s:
                self.deadline_s = None
                cluster.tell(Tick())

        self.agenda.after(deadline_s - self.agenda.now_s, tick)

    def _strike(self, fault: PlannedFault, cluster: Cluster) -> None:
        if not cluster.ended:
            self.trace.append(f"{self.agenda.now_s:9.3f} !! {fault.kind}")
            strike(fault, cluster)

    def _tell(self, event: Event, commands: list[Command]) -> None:
        self.trace.append(f"{self.agenda.now_s:9.3f} {event} -> {self.controller.state.phase}")
        self.trace.extend(f"{'':9}   {command}" for command in commands)

    def _outcome(self) -> RunOutcome:
        controller = self.controller
        state = controller.state
        if state.phase not in ENDED:
            raise InvariantError(f"nothing is left to happen, but the run is {state.phase}")
        if replay(self.journal, controller.options).state != state:
            raise InvariantError("replaying the journal leads to another state")
        return RunOutcome(
            seed=self.seed,
            status=state.phase.value,
            reason=state.reason,
            generations=view_of(controller).generations,
            steps=state.step,
            events=len(self.journal),
            seconds=self.agenda.now_s,
            faults=tuple(self.faults),
            trace=tuple(self.trace),
        )


def simulate(seed: int) -> RunOutcome:
    """A run drawn from `seed`: its size, how it cuts its state, its faults, every delay.

    Raises: SimulationError if an invariant broke, or if a run that could have finished did not.
    """
    chance = Random(seed ^ 0x5EED)  # noqa: S311 - a simulation, not a secret
    settings = Settings(
        steps=chance.randint(5, 60),
        every=chance.choice([3, 10, 20]),
        step_s=chance.choice([0.05, 0.2, 0.7]),
        spares=chance.randint(0, 2),
        min_workers=chance.choice([1, 1, 2]),
        slots=chance.randint(2, 4),
        doubled=chance.choice([0.0, 0.05, 0.5]),
        delayed=chance.choice([0.0, 0.03, 0.3]),
    )
    span_s = settings.steps * settings.step_s * 1.3 + 2.0
    faults = draw_faults(chance, settings.steps, span_s)
    vaults = Random(seed ^ 0x7A17)  # noqa: S311 - a simulation, not a secret
    settings = replace(
        settings,
        ladder=_draw_ladder(seed, settings.slots),
        snapshot_every=vaults.choice([0, 0, 1, 1, 2, 5]),
    )
    if settings.snapshot_every:
        faults += draw_vault_faults(vaults, settings.steps, span_s)
    for kind, salt in (("ladder", 0x1ADD), ("amend", 0xA3E0)):
        faults += draw_changes(kind, Random(seed ^ salt), settings.steps, span_s)  # noqa: S311 - likewise
    simulation = Simulation(seed, settings, faults)
    outcome = simulation.run()
    if not _as_expected(outcome):
        text = f"seed {seed}: {outcome.status}: {outcome.reason}"
        raise SimulationError(text, simulation.trace)
    return outcome


def _draw_ladder(seed: int, slots: int) -> Ladder:
    """Every second run has whole replicas. The head's slots alone always make up a mesh."""
    chance = Random(seed ^ 0x5A9E)  # noqa: S311 - a simulation, not a secret
    fitting = [ladder for ladder in LADDERS if ladder.smallest(1).workers <= slots]
    return WHOLE if chance.random() < HALF else chance.choice(fitting)


def _as_expected(outcome: RunOutcome) -> bool:
    """The head and its slots always survive: a run reaches its last step.

    Unless it was stopped, or all workers died at once and the only checkpoint was corrupt.
    """
    kinds = {fault.kind for fault in outcome.faults}
    if outcome.status == "finished":
        return True
    if outcome.status == "stopped":
        return "stop" in kinds
    return "corrupt checkpoint" in kinds and outcome.reason.startswith("no state is left")
