"""The losses of torch's own DDP, FSDP2 and DTensor on the same model, over five steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_engine import EVEN_MODEL, formed, spec, work_of, zero
from waiting import PATIENCE_S

from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import Precision

SIZE, BATCH, NUM_STEPS = 2, 8, 5
FP64 = Precision(compute=torch.float64, gradient=torch.float64, master=torch.float64)
SCRIPT = Path(__file__).parent / "torch_peers.py"


@pytest.fixture(scope="module")
def peers():
    """Losses by peer, of each rank."""
    command = [sys.executable, str(SCRIPT), *map(str, (SIZE, BATCH, NUM_STEPS))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def losses(seat, layout, more):
    chosen = spec(BATCH // 2, 1, model=EVEN_MODEL, precision=FP64, clip=0.0, **more)
    mesh, engine = formed(seat, layout, chosen)
    seen = [engine.step(step, work_of(mesh, step)).loss for step in range(1, NUM_STEPS + 1)]
    mesh.close()
    return seen


@pytest.mark.parametrize(
    ("peer", "layout", "more"),
    [
        ("ddp", Layout(dp=SIZE), {}),
        ("ddp", Layout(dp=SIZE), {"same_bits": False}),
        ("fsdp2", Layout(dp=SIZE), {"zero": zero(3)}),
        ("dtensor", Layout(tp=SIZE), {}),
        ("dtensor", Layout(tp=SIZE), {"sequence": True}),
    ],
)
def test_torchs_own_wrappers_have_the_same_losses(pool, peers, peer, layout, more):
    for own in pool.run(losses, SIZE, layout, more):
        for theirs in peers:
            assert own == pytest.approx(theirs[peer], abs=1e-6, rel=0)
