"""What a run asks of its controller: fixed from its start to its end."""

from dataclasses import dataclass, field

from remesh.orchestrator.control.words.records import CheckpointState, FreshState
from remesh.orchestrator.plan.shape import Shape

MANY_NODES = 2**16  # more than there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Counts of replicas, workers and nodes, the budget of failures, the knob of time, and where to
    start.

    `fallbacks` are older committed checkpoints, newest first, for when `resume` cannot be read.
    `last_generation` is the newest generation that an earlier run of the same job has used:
    generations go on from there, so that file names of two runs never meet.
    """

    steps: int
    max_dp: int
    min_workers: int = 1
    spares: int = 0
    min_nodes: int = 1
    max_nodes: int = MANY_NODES
    tp: int = 1
    zero_stage: int = 0
    zero_group: int = 0
    bucket_elements: int = 0
    allow_cross_node_tp: bool = False
    max_failures: int = 8
    healthy_steps: int = 100
    patience_s: float = 0.5
    wait_limit_s: float = 600.0
    resume: CheckpointState | FreshState = field(default_factory=FreshState)
    fallbacks: tuple[CheckpointState, ...] = ()
    last_generation: int = 0

    @property
    def shape(self) -> Shape:
        """What all meshes of the run have in common."""
        return Shape(
            max_dp=self.max_dp,
            tp=self.tp,
            zero_stage=self.zero_stage,
            zero_group=self.zero_group,
        )

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
