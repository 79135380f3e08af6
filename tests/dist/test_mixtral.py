"""A Mixtral of transformers trained beside one here, from the same files, by the same batches."""

import foreign_models
import numpy as np
import pytest
import torch
from converted_ranks import SEQ_LEN, VOCABULARY
from one_process import FP64, NUM_STEPS, clip_of
from small_engine import filler, spec, work_of, zero
from taken_over import take_over

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.files.convert import open_weights, read_model
from remesh.parallel.optim.lr import lr_at
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.step.engine import Engine

NUM_SEQUENCES = 8


def losses_here(seat, folder, layout, zero_spec):
    torch.set_num_threads(1)
    mesh = seat.mesh(layout, zero_spec.shard_size(layout.dp))
    storage = LocalStorage(folder)
    config = read_model(storage, SEQ_LEN)
    engine = Engine(spec(4, 1, model=config, precision=FP64, zero=zero_spec))
    engine.form(mesh)
    take_over(engine, open_weights(storage, config).start(f for f, _ in engine.fragments()), 0)
    losses = [engine.step(step, work_of(mesh, step)).loss for step in range(1, NUM_STEPS + 1)]
    mesh.close()
    return losses


def losses_there(model):
    """Of each step; and of each layer the tokens of each expert in the last one."""
    model = model.double().train()
    model.set_experts_implementation("eager")  # the others have no fp64
    loads = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda *told: loads.append(told[2][2]))
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in named.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for number in range(1, NUM_STEPS + 1):
        batch = np.empty((NUM_SEQUENCES, SEQ_LEN + 1), dtype=np.uint16)
        filler(number)(0, batch)
        tokens = torch.from_numpy(batch.astype(np.int64))
        loads.clear()
        optimizer.zero_grad()
        logits_BTV = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits_BTV.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1)
        )
        loss.backward()
        losses.append(loss.item())
        norm = torch.nn.utils.get_total_norm([p.grad for p in named.values()]).item()
        for parameter in named.values():
            parameter.grad.mul_(clip_of(norm))
        for group in optimizer.param_groups:
            group["lr"] = lr_at(spec().lr, number)
        optimizer.step()
    return losses, [torch.bincount(load.flatten(), minlength=4).tolist() for load in loads]


@pytest.mark.parametrize(
    ("layout", "zero_spec"),
    [(Layout(), ZeroSpec()), (Layout(dp=2, pp=2), zero(1)), (Layout(dp=2, tp=2), zero(3))],
)
def test_five_steps_lose_what_a_mixtral_of_transformers_loses(pool, tmp_path, layout, zero_spec):
    model = foreign_models.make("mixtral", tied=False)
    model.save_pretrained(tmp_path)
    expected, loads = losses_there(model)
    for tokens in loads:
        assert tokens[0] > NUM_SEQUENCES * SEQ_LEN / 2
        assert tokens[-1] == 0
    for losses in pool.run(losses_here, layout.world_size, tmp_path, layout, zero_spec):
        assert losses == pytest.approx(expected, rel=1e-6, abs=1e-6)
