"""What all parts of the simulated cluster share: time, chance, the run's settings, its storage."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.job.amendments import Amendments, values_at
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.ladder import Flight, Ladder
from remesh.orchestrator.plan.rung import Unit
from remesh.orchestrator.plan.staging import Staging
from remesh.orchestrator.plan.wish import asked
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.slow_storage import SlowStorage
from remesh.orchestrator.sim.shells.vault import Promises, SimVault
from remesh.orchestrator.vault.snapshot_pace import Every
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.step_result import StepResult

GLOBAL_BATCH = 24
RATE = 3e-3  # at which a run begins


def ladder_of_units(
    replicas: int,
    workers: int = 1,
    shards: int = 1,
    stages: Sequence[int] = (1,),
    *,
    copies: int = 1,
    together: int = 1,
) -> Ladder:
    """Up to so many replicas of units of so many workers; so many replicas, all if it is 0, share a
    copy. Pipelines have any of these numbers of stages, a unit each, and a replica has as many
    units as there can be of the first kind. In a unit are so many `copies` of each part of a layer.
    So many replicas `together` have all experts.
    """
    units = replicas * stages[0]
    unit = Unit(workers=workers)
    flights = tuple(_flight(units // each, unit, shards, each, copies, together) for each in stages)
    return Ladder(flights=flights, num_leaves=GLOBAL_BATCH)


def _flight(
    replicas: int, unit: Unit, shards: int, stages: int = 1, copies: int = 1, together: int = 1
) -> Flight:
    pipeline = Pipeline(ranks=stages, chunks=2 if stages > 1 else 1)
    return Flight.of_units(
        replicas=replicas,
        unit=unit,
        copies=copies,
        shards=shards,
        staging=Staging(
            schedule="interleaved",
            pipeline=pipeline,
            num_leaves=GLOBAL_BATCH,
        ),
        bit_key=f"tp={unit.workers // copies} cp={copies} ep={together}",
    ).sharing_experts(together * copies if together > 1 else 1)


PAIR = Unit(workers=2)
WHOLE = ladder_of_units(4)
LADDERS = (
    ladder_of_units(4, workers=2),
    ladder_of_units(4, shards=0),
    ladder_of_units(4, shards=2),
    ladder_of_units(2, workers=2, shards=0),
    ladder_of_units(4, workers=2, shards=2),
    ladder_of_units(2, stages=(2,)),
    ladder_of_units(2, workers=2, stages=(2,)),
    ladder_of_units(1, stages=(4,)),
    ladder_of_units(3, shards=0, stages=(2,)),
    ladder_of_units(1, stages=(4, 3, 2, 1)),
    ladder_of_units(4, shards=2, stages=(2, 1)),
    ladder_of_units(2, workers=2, shards=0, stages=(2, 1)),
    ladder_of_units(4, workers=2, copies=2),
    ladder_of_units(2, workers=2, shards=0, copies=2),
    ladder_of_units(2, workers=4, copies=2),
    ladder_of_units(2, workers=2, stages=(2, 1), copies=2),
)
OTHER_LADDERS = (
    WHOLE,
    *LADDERS,
    ladder_of_units(2, shards=0),
    Ladder(flights=(_flight(3, PAIR, 0), _flight(5, Unit(), 0)), num_leaves=GLOBAL_BATCH),
    Ladder(flights=(_flight(2, PAIR, 1, stages=2), _flight(5, Unit(), 0)), num_leaves=GLOBAL_BATCH),
)
WISHES = (
    (None, WHOLE),
    (asked("dp=2"), ladder_of_units(2)),
    (asked("tp=2"), ladder_of_units(4, workers=2)),
    (asked("tp=2"), ladder_of_units(2, workers=2, shards=0)),
    (asked("pp=2"), ladder_of_units(2, stages=(2,))),
    (asked("cp=2"), ladder_of_units(4, workers=2, copies=2)),
    (asked("ep=2"), ladder_of_units(4, together=2)),
    (asked("ep=2"), ladder_of_units(4, shards=0, together=2)),
    (asked("cp=2,tp=2"), ladder_of_units(2, workers=4, copies=2)),
    (asked("ep=2,pp=2"), ladder_of_units(2, shards=2, stages=(2,), together=2)),
    (
        asked("pp=1"),
        Ladder(flights=(_flight(2, PAIR, 0), _flight(5, Unit(), 0)), num_leaves=GLOBAL_BATCH),
    ),
    (
        asked("cp=1"),
        Ladder(flights=(_flight(2, PAIR, 1), _flight(5, Unit(), 1)), num_leaves=GLOBAL_BATCH),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes of a simulated run. `every` is the interval of checkpoints in steps, `snapshot_every`
    that of snapshots: 0 for a run without vaults.

    `ladder` is which meshes it may have, and how they cut the state. `slow` times as long as on a
    quick one everything takes on storage. Nodes are dealt to so many failure `domains`, to none if
    it is 0. With `devices` each process is given one. `lost` is the share of messages that have to
    be sent again. The run is started up to `starts` times; none may take longer than `limit_s`. A
    vault has `room` for so many slots.
    """

    steps: int
    every: int
    step_s: float
    patience_s: float = 0.5
    ladder: Ladder = WHOLE
    min_workers: int = 1
    spares: int = 1
    max_failures: int = 40
    slots: int = 3
    snapshot_every: Every = 0
    doubled: float = 0.0
    delayed: float = 0.0
    lost: float = 0.0
    slow: float = 1.0
    domains: int = 0
    min_nodes: int = 1
    devices: bool = False
    room: int = 10**6
    starts: int = 1
    limit_s: float = 300.0


@dataclass(slots=True)
class Saved:
    """A committed checkpoint in the simulated storage."""

    step: int
    value: int
    generation: int = 0
    readable: bool = True


@dataclass(slots=True)
class World:
    """`post` hands an event of a node to the network.

    `written` holds the (generation, step, worker) of every file on storage. `vaults` are the newest
    ones by node, `promised` the stable step of each generation, with the vaults and ranks that had
    it sealed when it was voted. `domains` has the failure domain of each node, `joined` says
    whether nodes reach each other, `vaults_known` the addresses of the vaults that the controller
    counts on, by node.
    """

    agenda: Agenda
    chance: Random
    settings: Settings
    post: Callable[[str, Event], None]
    written: set[tuple[int, int, str]] = field(default_factory=set)
    committed: dict[str, Saved] = field(default_factory=dict)
    copies_fail: bool = False
    vaults: dict[str, SimVault] = field(default_factory=dict)
    promised: Promises = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    joined: Callable[[Collection[str]], bool] = lambda _: True
    vaults_known: Callable[[], Mapping[str, str]] = dict
    storage: SlowStorage = field(init=False)

    def __post_init__(self) -> None:
        self.storage = SlowStorage(self.agenda, self.chance, self.settings.slow)

    def take_over(self, before: "World") -> None:
        """The storage of an earlier start of the same run."""
        self.storage, self.written, self.committed = (
            before.storage,
            before.written,
            before.committed,
        )

    @property
    def timers(self) -> Timers:
        return Timers(patience_s=self.settings.patience_s)

    @property
    def room(self) -> int:
        return self.settings.room

    def reaches(self, nodes: Collection[str]) -> bool:
        return self.joined(nodes)

    def vault_at(self, address: str) -> SimVault | None:
        """The newest vault of a node, if it is at this address."""
        found = self.vaults.get(address.partition(":")[0])
        return found if found is not None and found.address == address else None

    def between(self, low_s: float, high_s: float) -> float:
        return self.chance.uniform(low_s, high_s)


def digest_of(step: int) -> str:
    """What the samples of a step add up to, here and in the ledger's expectation."""
    return f"samples-of-{step}"


def value_after(value: int, step: int) -> int:
    """The parameters after `step`: a number that shows every step left out or done twice."""
    return (value * 1_000_003 + step) % (1 << 61)


def rate_at(amendments: Amendments, step: int) -> float:
    """What a rank that was told of these trains with, and what the ledger has to say of it."""
    return float(values_at(amendments, step).get("train.lr", RATE))


def record_of(step: int, lr: float, step_s: float, ended_s: float) -> StepRecord:
    return StepRecord(
        step=step,
        did=StepResult(
            loss=5.0 / step,
            grad_norm=1.0,
            lr=lr,
            tokens=GLOBAL_BATCH * 128,
            samples=GLOBAL_BATCH,
            digest=digest_of(step),
            applied=True,
        ),
        step_s=step_s,
        ended_s=ended_s,
    )
