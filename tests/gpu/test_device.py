"""What only a device can show: NCCL ended and built again, bf16 steps, and their MFU."""

import sys
import time

import numpy as np
import pytest
import torch
from sized import num_parameters

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.groups.store import StoreClient, StoreServer
from remesh.parallel.model.stack_products import Grouped, Looped, products_of
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec, Precision
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import Work

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

HOST = "127.0.0.1"
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # bf16, dense, by the vendor


def tell(line):
    sys.stderr.write(line + "\n")


def test_a_group_of_one_rank_is_ended_and_built_again():
    from remesh.parallel.groups.nccl import build_nccl  # noqa: PLC0415 - it needs a build with NCCL

    server = StoreServer.open(HOST)
    times_s = []
    for generation in range(20):
        rendezvous = Rendezvous(
            host=HOST,
            port=server.port,
            secret=server.secret,
            generation=generation,
            rank=0,
            size=1,
            node_ip=HOST,
            form_timeout_s=30,
            op_timeout_s=30,
            device="cuda:0",
        )
        started_s = time.perf_counter()
        client = StoreClient.connect(
            HOST, server.port, secret=server.secret, prefix=str(generation), timeout_s=30
        )
        group, end = build_nccl(rendezvous, client)
        tensor = torch.ones(1 << 20, device="cuda:0")
        group.allreduce([tensor]).wait()
        torch.cuda.synchronize()
        assert tensor.sum().item() == 1 << 20
        times_s.append(time.perf_counter() - started_s)
        end()
        client.close()
    server.close()
    tell(f"NCCL, one rank, built and used: {1e3 * sorted(times_s)[len(times_s) // 2]:.0f} ms")


def test_bf16_steps_learn_and_their_mfu_is_told():
    model = ModelConfig(
        num_layers=12,
        width=1024,
        num_heads=16,
        num_kv_heads=16,
        ffn_width=2816,
        vocab_size=32000,
        seq_len=2048,
    )
    spec = EngineSpec(
        model=model,
        seed=0,
        num_leaves=1,
        microbatches_per_leaf=1,
        microbatch=8,
        lr=LrCurve(peak=3e-4),
        optimizer=AdamW(),
        clip=1.0,
        precision=Precision(compute=torch.bfloat16),
    )
    tokens = np.random.default_rng(0).integers(0, 32000, (8, 2049), dtype=np.uint16)

    def fill(_, out):
        out[:] = tokens
        return 0, 0, len(out)

    mesh = Mesh.alone()
    engine = Engine(spec, torch.device("cuda:0"))
    engine.form(mesh)
    engine.reset()
    losses, times_s = [], []
    for step in range(1, 13):
        work = Work(
            mesh=mesh,
            fence=GenerationFence(),
            generation=0,
            fill=fill,
            write_digest=str,
            stamp=lambda *_: None,
        )
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        losses.append(engine.step(step, work).loss)
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - started_s)
    assert losses[-1] < losses[0] - 1
    step_s = sorted(times_s[2:])[len(times_s[2:]) // 2]
    flops = 8 * 2048 * (6 * num_parameters(model) + 12 * model.num_layers * model.width * 2048)
    name = torch.cuda.get_device_name()
    peak = next((value for part, value in PEAK_FLOPS.items() if part in name), None)
    share = f", MFU {flops / step_s / peak:.1%}" if peak else ""
    tell(f"{name}: {8 * 2048 / step_s:,.0f} tokens/s, {flops / step_s / 1e12:.0f} TFLOP/s{share}")


def test_experts_of_a_rank_are_computed_at_once():
    """As by a loop, faster, and without what memory held before for experts without rows."""
    device, counts = torch.device("cuda:0"), (700, 0, 1300, 48, 0, 1500, 300, 248)
    x_MC = torch.randn(sum(counts), 1024, device=device, dtype=torch.bfloat16)
    weight_EFC = torch.randn(8, 1408, 1024, device=device, dtype=torch.bfloat16) / 32
    grad_MF = torch.randn(sum(counts), 1408, device=device, dtype=torch.bfloat16)
    dirty = [torch.full((8, 1408, 1024), torch.nan, device=device) for _ in range(4)]
    del dirty
    chosen = products_of(counts, x_MC, [weight_EFC])
    assert isinstance(chosen, Grouped)
    outcomes, times_s = [], []
    for products in (chosen, Looped(counts)):
        total_EFC = torch.zeros_like(weight_EFC)
        products.add_of_weight(total_EFC, grad_MF, x_MC)
        of_input = products.of_input([grad_MF], [weight_EFC])
        outcomes.append((*products.outputs(x_MC, [weight_EFC]), of_input, total_EFC))
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        for _ in range(20):
            products.outputs(x_MC, [weight_EFC])
        torch.cuda.synchronize()
        times_s.append((time.perf_counter() - started_s) / 20)
    for found, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-1)
    assert not outcomes[0][-1][[1, 4]].any()
    tell(f"products of 8 experts: {1e3 * times_s[0]:.3f} ms, {1e3 * times_s[1]:.3f} ms in a loop")
