"""What is told of a run: as plain JSON values for programs, as a RunStatus for its driver."""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from remesh.orchestrator.accounts.plain_values import plain
from remesh.orchestrator.accounts.standing import Standing
from remesh.orchestrator.accounts.view import View
from remesh.orchestrator.accounts.waits import Awaited
from remesh.orchestrator.control.memory.membership import NodeState, WorkerState
from remesh.orchestrator.job.driver_words import GenerationMark, RunStatus, RunWait
from remesh.parallel.plan.layout import Layout

MARKS = 32  # generations on the time line of a driver
NOBODY: Mapping[str, Any] = MappingProxyType(
    {"workers": [], "nodes": [], "wait": None, "deadline_s": None, "left_s": None}
)


def told_of(view: View, standing: Standing) -> dict[str, Any]:
    """Where the run stands and how it does. Nobody works for one that has ended.

    Its workers' processes are gone, and their numbers may be anybody's by now.
    """
    told: dict[str, Any] = {**status_of(view), **plain(asdict(standing))}
    return {**told, **NOBODY} if view.ended else told


def status_of(view: View) -> dict[str, Any]:
    """The view as plain JSON values."""
    values: dict[str, Any] = plain(asdict(view))
    values["layout"] = layout_text(view.layout)
    for entry, life in zip(values["generations"], view.generations, strict=True):
        entry["layout"] = layout_text(life.layout)
    return values


def layout_text(layout: Layout | None) -> str:
    """The degrees above 1, such as "dp=4"; dp always stands."""
    if layout is None:
        return ""
    degrees = asdict(layout)
    return " ".join(f"{axis}={n}" for axis, n in degrees.items() if n > 1 or axis == "dp")


def progress_of(view: View, standing: Standing, now_s: float) -> RunStatus:
    """Likewise for its driver; the run's name, folder and announcements are still to be added."""
    saved_s = standing.saved_at_s
    return RunStatus(
        phase=view.phase,
        step=view.step,
        steps=view.steps,
        loss=view.last.did.loss if view.last else None,
        tokens_per_s=standing.tokens_per_s,
        layout=layout_text(view.layout),
        generation=view.generation,
        workers=sum(worker.rank is not None for worker in view.workers),
        ended=view.ended,
        status=view.phase if view.ended else "",
        reason=view.reason,
        user_error=view.user_error,
        nodes=sum(node.state == NodeState.USED for node in view.nodes),
        spares=sum(worker.state == WorkerState.IDLE for worker in view.workers),
        step_s=standing.step_s,
        left_s=standing.left_s,
        goodput=standing.goodput,
        saved_step=view.committed_step,
        saved_ago_s=None if saved_s is None else max(0.0, now_s - saved_s),
        losses=standing.losses,
        wait=wait_told(view.wait, now_s),
        generations=_marks(view),
    )


def wait_told(wait: Awaited | None, now_s: float) -> RunWait | None:
    if wait is None:
        return None
    limit_s = None if wait.until_s is None else max(0.0, wait.until_s - now_s)
    return RunWait(text=wait.text, have=wait.have, need=wait.need, limit_s=limit_s)


def _marks(view: View) -> tuple[GenerationMark, ...]:
    return tuple(
        GenerationMark(
            generation=life.generation,
            from_step=life.from_step,
            started_s=life.started_s,
            text=f"{layout_text(life.layout)} {life.reason}",
        )
        for life in view.generations[-MARKS:]
    )
