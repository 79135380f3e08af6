"""What the controller is told and starts with, as values: each class is made here only."""

from ladders import options_with_ladder

from remesh.orchestrator.control.words.records import StepRecord, VaultSlot
from remesh.parallel.plan.cut import held_by
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.step_result import StepResult

DID = {"loss": 1.0, "grad_norm": 1.0, "lr": 0.1, "tokens": 10, "samples": 4, "applied": True}


def record(step, *, step_s=0.2, ended_s=0.0, **did):
    did = StepResult(**{"digest": f"d{step}", **DID, **did})
    return StepRecord(step=step, did=did, step_s=step_s, ended_s=ended_s)


def records(first, last, ended_s, **values):
    return tuple(record(step, ended_s=ended_s, **values) for step in range(first, last + 1))


def options(steps=10, max_dp=2, **more):
    return options_with_ladder(steps=steps, max_dp=max_dp, **more)


def held(rank=0, *, layout=None, shard_size=1, **degrees):
    """The part of this rank in a mesh of the layout, or of one of these degrees."""
    return held_by(layout or Layout(**degrees), shard_size, rank)


def slot(vault, part, step, generation=1):
    """The snapshot of a part in a vault."""
    return VaultSlot(vault=vault, held=part, generation=generation, step=step)
