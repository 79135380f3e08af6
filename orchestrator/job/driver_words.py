"""What the command and the cluster tell each other about a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remesh.orchestrator.job.faults_on_order import OrderedFault

INTERRUPTED = "interrupted"  # the phase of a run without an end whose controller is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to start a run. `address` names a running Ray cluster; without it one is started here.

    It goes back to the checkpoint of `from_step`, if that is given.
    A run of a `submission` outlives its driver, and is taken up by the next driver of the same one.
    """

    nodes: int = 2
    workers_per_node: int = 2
    faults: tuple[OrderedFault, ...] = ()
    fresh: bool = False
    from_step: int | None = None
    address: str | None = None
    submission: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWait:
    """What a run waits for: it has so many, needs so many in words, and gives up in `limit_s`."""

    text: str
    have: int
    need: str
    limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMark:
    """One generation on the time line of a run: from which step on, since when, and why."""

    generation: int
    from_step: int
    started_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Where a run stands now. `announcements` are the sentences since the last poll.

    `status` is empty until the run has `ended`, then finished, failed or stopped; `reason` is one
    sentence, and `user_error` says that it names something to be changed first. `step_s` is the
    pace, at which `left_s` is reckoned; `losses` are a few points over all steps, `generations`
    the newest ones.
    """

    phase: str
    step: int
    steps: int
    loss: float | None = None
    tokens_per_s: float | None = None
    layout: str = ""
    generation: int = 0
    workers: int = 0
    announcements: tuple[str, ...] = ()
    ended: bool = False
    status: str = ""
    reason: str = ""
    user_error: bool = False
    run: str = ""
    folder: str = ""
    nodes: int = 0
    spares: int = 0
    step_s: float | None = None
    left_s: float | None = None
    goodput: float | None = None
    saved_step: int | None = None
    saved_ago_s: float | None = None
    losses: tuple[float, ...] = ()
    wait: RunWait | None = None
    generations: tuple[GenerationMark, ...] = ()


def is_over(status: Mapping[str, Any]) -> bool:
    """Whether a status says that nothing more will happen by itself."""
    return bool(status["ended"]) or status["phase"] == INTERRUPTED
