"""What a run asks of its controller: fixed from its start to its end."""

from dataclasses import dataclass, field

from remesh.orchestrator.control.words.carried import Carried
from remesh.orchestrator.control.words.records import CheckpointState, FreshState
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.ladder import Ladder

MANY_NODES = 2**16  # more than there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The meshes it may have, counts of workers and nodes, the budget of failures, the knob of
    time, and where to start.

    A checkpoint is saved every `save_every` steps, 0 if that is not known. `fallbacks` are older
    committed checkpoints, newest first, for when `resume` cannot be read. `last_generation` is the
    newest generation that an earlier run of the same job has used: generations go on from there, so
    that file names of two runs never meet. `start` counts the starts of the run, this one included.
    `amendments` are those of its earlier starts, and `origin` is the checkpoint that it branched
    off, if it did. `carried` is what the starts before have learned.
    """

    steps: int
    ladder: Ladder
    min_workers: int = 1
    spares: int = 0
    min_nodes: int = 1
    max_nodes: int = MANY_NODES
    max_failures: int = 8
    healthy_steps: int = 100
    max_skipped_steps: int = 10
    patience_s: float = 0.5
    wait_limit_s: float = 600.0
    save_every: int = 0
    resume: CheckpointState | FreshState = field(default_factory=FreshState)
    fallbacks: tuple[CheckpointState, ...] = ()
    last_generation: int = 0
    start: int = 1
    amendments: Amendments = ()
    origin: str = ""
    carried: Carried = field(default_factory=Carried)

    @property
    def timers(self) -> Timers:
        """Every deadline of the run."""
        return Timers(patience_s=self.patience_s)

    @property
    def first_step(self) -> int:
        """The step whose state the run starts from."""
        return self.resume.step if isinstance(self.resume, CheckpointState) else 0

    @property
    def checkpoints(self) -> tuple[CheckpointState, ...]:
        """Everything that can be read at the start, newest first."""
        if isinstance(self.resume, CheckpointState):
            return (self.resume, *self.fallbacks)
        return self.fallbacks
