"""How often a step asks a device for a number: the host waits for all that it has to do by then."""

import pytest
import torch
from small_engine import formed, spec, work_of, zero
from torch.utils._python_dispatch import TorchDispatchMode

from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.schedules.operations import Backward, Forward, Reduce, Step, Vote
from remesh.parallel.spec import Precision

ASKS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")


class Asked(TorchDispatchMode):
    """How many numbers of tensors the host has asked for so far."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().removeprefix("aten::").partition(".")[0] in ASKS:
            self.count += 1
        return function(*args, **(kwargs or {}))


def asked_by_operation(seat, layout, more):
    """Of the second step: the kinds of operations that ask for numbers, and all kinds."""
    mesh, engine = formed(seat, layout, spec(4, 2, **more))
    engine.step(1, work_of(mesh, 1))
    schedule, counts = engine.assembly.schedule, []
    with Asked() as asked:
        engine.step(2, work_of(mesh, 2, stamp=lambda *_: counts.append(asked.count)))
    mesh.close()
    found = zip(schedule, counts, counts[1:], strict=False)
    kinds = {type(operation) for operation, before, after in found if after > before}
    return kinds, {type(operation) for operation in schedule}


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (Layout(), {}),
        (Layout(), {"z_loss": 1e-3, "precision": Precision(compute=torch.bfloat16)}),
        (Layout(dp=2, tp=2), {"zero": zero(3)}),
    ],
)
def test_no_microbatch_waits_for_a_number_of_the_device(pool, layout, more):
    """speed 6: three waited, between forward and backward."""
    for asking, carried_out in pool.run(asked_by_operation, layout.world_size, layout, more):
        assert {Forward, Backward, Reduce, Vote, Step} <= carried_out
        assert asking <= {Vote, Step}  # the count of updates lies in the host's memory
