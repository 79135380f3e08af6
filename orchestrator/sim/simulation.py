"""One simulated run from one seed: its starts, what befalls them, and what came of it all."""

from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random

from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.journal import replay
from remesh.orchestrator.control.memory.generations import GenerationReport
from remesh.orchestrator.control.memory.quarantine import COOL_DOWN_PATIENCES
from remesh.orchestrator.control.words.events import Event, RunStarted
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.sim.checks.bounds import Costs, num_cool_downs
from remesh.orchestrator.sim.checks.coverage import Coverage
from remesh.orchestrator.sim.checks.whole_run import WholeRun
from remesh.orchestrator.sim.mishaps.faults import PlannedFault
from remesh.orchestrator.sim.mishaps.strikes import strike
from remesh.orchestrator.sim.next_start import next_options
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.world import Settings, World
from remesh.orchestrator.sim.start import SimStart

STARTUP_S = 3.0
MOST_LINES = 100_000
CONTENT = 0.8  # with a run that is done: others start it again


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """`seconds` are simulated. `trace` tells each event with what was decided.

    `status` and `reason` are those of the last start, `statuses` those of all. `lacks_nodes`: there
    were fewer nodes at its end than a mesh takes.
    """

    seed: int
    status: str
    reason: str
    statuses: tuple[str, ...]
    generations: tuple[GenerationReport, ...]
    steps: int
    events: int
    seconds: float
    faults: tuple[PlannedFault, ...]
    trace: tuple[str, ...]
    coverage: Coverage
    lacks_nodes: bool


class SimulationError(AssertionError):
    """An invariant was broken; the message names the seed, `trace` tells the story."""

    def __init__(self, message: str, trace: list[str]) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(slots=True, eq=False)
class Simulation:
    """Begins one start of the run after the other, until it is done or has had all of them."""

    seed: int
    settings: Settings
    faults: list[PlannedFault]
    agenda: Agenda = field(default_factory=Agenda)
    trace: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    whole: WholeRun = field(default_factory=WholeRun)
    struck: list[PlannedFault] = field(default_factory=list)
    starts: list[SimStart] = field(default_factory=list)
    done: bool = False
    chance: Random = field(init=False)
    starts_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)  # noqa: S311 - a simulation, not a secret

    @property
    def newest(self) -> SimStart:
        return self.starts[-1]

    def run(self) -> RunOutcome:
        try:
            return self._run()
        except AssertionError as error:
            raise SimulationError(f"seed {self.seed}: {error}", self.trace) from error

    def _run(self) -> RunOutcome:
        self._begin(options_of(self.settings))
        for fault in self.faults:
            if fault.at_step is None:
                self.agenda.after(STARTUP_S + fault.at_s, partial(self._strike, fault))
        while not self.done and self.agenda.step():
            if len(self.trace) > MOST_LINES:
                raise InvariantError(f"still busy after {MOST_LINES} lines of its story")
            if self.agenda.now_s - self.starts_at_s > self.settings.limit_s:
                phase = self.newest.controller.state.phase
                raise InvariantError(f"still {phase} after {self.settings.limit_s:.0f} s")
        return self._outcome()

    def _begin(self, options: Options) -> None:
        def post(node: str, event: Event) -> None:
            start.cluster.post(node, event)

        world = World(self.agenda, self.chance, self.settings, post)
        if self.starts:
            world.take_over(self.newest.world)
        start = SimStart(
            world=world,
            options=options,
            trace=self.trace,
            coverage=self.coverage,
            whole=self.whole,
            voted=self._voted,
            claim=self._claim,
            over=self._over,
        )
        self.starts_at_s = self.agenda.now_s
        self.trace.append(f"{self.agenda.now_s:9.3f} start {options.start}")
        hosts = self.newest.cluster.hosts.values() if self.starts else ()
        there: list[str | None] = [host.address for host in hosts if host.alive]
        for address in there or [None, None]:
            start.cluster.join(address)
        self.starts.append(start)
        self.agenda.after(0.1, lambda: start.cluster.tell(RunStarted()))

    def _over(self, start: SimStart) -> None:
        """Nobody acts for it any more; after a while somebody may start the run again."""
        if start is not self.newest:
            return
        again = len(self.starts) < self.settings.starts
        done = start.controller.state.phase is Phase.FINISHED
        if not again or (done and self.chance.random() < CONTENT):
            self.done = True
        else:
            self.agenda.after(self.chance.uniform(0.1, 10.0), self._begin_again)

    def _claim(self) -> None:
        """Somebody starts the run although it goes on: the older start is cut off from it."""
        before = self.newest
        if len(self.starts) < self.settings.starts and not before.is_over:
            before.invariants.whole = deepcopy(self.whole)  # it acts for itself from now on
            self._begin_again()
            self.agenda.after(self.chance.uniform(0.0, 20.0), before.leave)

    def _begin_again(self) -> None:
        before = self.newest
        before.world.storage.claim += 1
        self._begin(next_options(before.controller, before.world))

    def _voted(self, step: int) -> None:
        for fault in self.faults:
            if fault.at_step == step and fault not in self.struck:
                self.struck.append(fault)
                delay_s = self.chance.choice([0.0, 0.02, 0.5])
                self.agenda.after(delay_s, partial(self._strike, fault))

    def _strike(self, fault: PlannedFault) -> None:
        if not self.newest.is_over:
            self.trace.append(f"{self.agenda.now_s:9.3f} !! {fault.kind}")
            strike(fault, self.newest.cluster)

    def _outcome(self) -> RunOutcome:
        start = self.newest
        controller = start.controller
        state = controller.state
        if not self.done:
            raise InvariantError(f"nothing is left to happen, but the run is {state.phase}")
        if replay(start.journal.read(), controller.options).state != state:
            raise InvariantError("replaying the journal leads to another state")
        self._costs().check([fault.kind for fault in self.faults], self.settings.slow)
        return RunOutcome(
            seed=self.seed,
            status=start.status,
            reason=state.reason,
            statuses=tuple(one.status for one in self.starts),
            generations=view_of(controller).generations,
            steps=state.step,
            events=sum(len(one.journal.lines) for one in self.starts),
            seconds=self.agenda.now_s,
            faults=tuple(self.faults),
            trace=tuple(self.trace),
            coverage=self.coverage,
            lacks_nodes=start.cluster.num_there < self.settings.min_nodes,
        )

    def _costs(self) -> Costs:
        lives = [life for one in self.starts for life in view_of(one.controller).generations]
        return Costs(
            meshes=len(lives),
            kills=sum(one.kills for one in self.starts),
            steps=sum(one.controller.state.step for one in self.starts)
            + sum(life.lost_steps for life in lives),
            journal_bytes=sum(one.journal.num_bytes for one in self.starts),
            recoveries_s=[_to_first_step_s(life) for life in lives if life.recovery_s is not None],
            cool_downs=num_cool_downs(
                self.agenda.now_s, COOL_DOWN_PATIENCES * self.settings.patience_s
            ),
        )


def _to_first_step_s(life: GenerationReport) -> float:
    """Of a recovery, without what is trained again: that takes as long as it has steps."""
    retrain_s = life.recovery_parts.retrain if life.recovery_parts else 0.0
    return (life.recovery_s or 0.0) - retrain_s


def options_of(settings: Settings) -> Options:
    """What a first start begins with."""
    return Options(
        steps=settings.steps,
        ladder=settings.ladder,
        min_workers=settings.min_workers,
        min_nodes=settings.min_nodes,
        spares=settings.spares,
        max_failures=settings.max_failures,
        patience_s=settings.patience_s,
        save_every=settings.every,
    )
