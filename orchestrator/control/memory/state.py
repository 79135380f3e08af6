"""Everything the controller remembers. It is rebuilt exactly by replaying the journal."""

from dataclasses import dataclass, field, fields

from remesh.orchestrator.control.memory.budget import Budget
from remesh.orchestrator.control.memory.checkpoint_book import Checkpoints
from remesh.orchestrator.control.memory.deadlines import Deadlines
from remesh.orchestrator.control.memory.fruitless import Fruitless
from remesh.orchestrator.control.memory.generations import Fault, Generation
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.memory.quarantine import Quarantine
from remesh.orchestrator.control.memory.repeats import Repeats
from remesh.orchestrator.control.memory.roster import Roster
from remesh.orchestrator.control.memory.suspicions import Suspicions
from remesh.orchestrator.control.memory.vaults import Vaults
from remesh.orchestrator.control.words.events import LadderChanged
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.wish import LayoutWish


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """How a run is to end, once what its ranks hold is saved. Unless it `may_form`, no further mesh
    is tried for that.
    """

    phase: Phase
    reason: str
    user_error: bool = False
    may_form: bool = True


@dataclass(slots=True, kw_only=True)
class State:
    """`step` is the newest step that the run stands on, `last` the record of the newest finished.

    `stop_reason` is empty until somebody asks for a stop, or the head is `preempted`. `wishes` are
    all that asked, each with the moment at which it has waited long enough, if there is one.
    `parting` is how the run is to end, for whatever reason; `user_error` is what End says. `fault`
    is open from the first sign of trouble until the next generation is asked for. `wanted_nodes` is
    what somebody asked for since the start. `ladder` is what the run picks its meshes from since
    its own was replaced, `next_ladder` one that is not taken up yet, `asked_layout` what somebody
    asked of its degrees. `amendments` are all of the run since there are new ones, and
    `asked_changes` what is not taken up yet. `start_trouble` is why the newest start of a worker
    failed, until one does not. `bit_key` is what the bits of the newest mesh depend on, empty
    before the first one of the run.
    """

    phase: Phase = Phase.WAITING
    reason: str = ""
    started: bool = False
    stop_reason: str = ""
    preempted: bool = False
    wishes: dict[str, float | None] = field(default_factory=dict)
    parting: Parting | None = None
    wanted_nodes: int | None = None
    ladder: Ladder | None = None
    next_ladder: LadderChanged | None = None
    asked_layout: LayoutWish | None = None
    amendments: Amendments | None = None
    asked_changes: Amendments = ()
    user_error: bool = False
    step: int = 0
    last: StepRecord | None = None
    last_ready_s: float = 0.0
    start_trouble: str = ""
    last_generation: int = 0
    fault: Fault | None = None
    bit_key: str = ""
    generations: list[Generation] = field(default_factory=list)
    roster: Roster = field(default_factory=Roster)
    quarantine: Quarantine = field(default_factory=Quarantine)
    lineage: Lineage = field(default_factory=Lineage)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    vaults: Vaults = field(default_factory=Vaults)
    fruitless: Fruitless = field(default_factory=Fruitless)
    budget: Budget = field(default_factory=Budget)
    suspicions: Suspicions = field(default_factory=Suspicions)
    repeats: Repeats = field(default_factory=Repeats)
    deadlines: Deadlines = field(default_factory=Deadlines)

    def become(self, other: "State") -> None:
        """Remember what that one does, and nothing else."""
        for one in fields(self):
            setattr(self, one.name, getattr(other, one.name))

    @property
    def current(self) -> Generation:
        """The newest generation; there is one in every phase but the first WAITING."""
        return self.generations[-1]

    def live(self, generation: int) -> bool:
        """Whether word from this generation still counts."""
        return bool(self.generations) and self.current.generation == generation

    def heard_step(self, generation: int) -> int:
        """The newest step of this generation up to which all records are in the journal."""
        life = self.life(generation)
        return -1 if life is None else life.heard_step

    def life(self, generation: int) -> Generation | None:
        """One of the run's generations, which are numbered without a gap."""
        index = generation - self.generations[0].generation if self.generations else -1
        return self.generations[index] if 0 <= index < len(self.generations) else None

    @property
    def notice_s(self) -> float | None:
        """The moment at which the run ends, saved or not, None for whenever it is saved."""
        moments = [at_s for at_s in self.wishes.values() if at_s is not None]
        return min(moments, default=None)

    @property
    def step_s(self) -> float | None:
        return None if self.last is None else self.last.step_s
