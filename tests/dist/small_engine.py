"""A small engine, its samples, and a hash of all it holds: what several tests train."""

import hashlib
from dataclasses import replace

import numpy as np

from remesh.data.digest import StepDigest
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec, ZeroSpec
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import Work

MODEL = ModelConfig(
    num_layers=2, width=48, num_heads=4, num_kv_heads=2, ffn_width=80, vocab_size=61, seq_len=20
)

EVEN_MODEL = replace(MODEL, vocab_size=64)  # for peers that pad nothing


def spec(num_leaves=12, microbatches_per_leaf=2, *, clip=0.5, lr=3e-3, **more):
    settings = {"model": MODEL, "optimizer": AdamW(), "num_segments": 4, **more}
    return EngineSpec(
        **settings,
        seed=7,
        num_leaves=num_leaves,
        microbatches_per_leaf=microbatches_per_leaf,
        microbatch=2,
        lr=LrCurve(peak=lr, kind="cosine", warmup_steps=3, lr_steps=20),
        clip=clip,
    )


def zero(stage, **more):
    """Buckets are small: one holds a block of the small model."""
    return ZeroSpec(stage=stage, **{"bucket_bytes": 1 << 14, **more})


def sample(step, number):
    rng = np.random.default_rng([step, number])
    return rng.integers(0, MODEL.vocab_size, MODEL.seq_len + 1, dtype=np.uint16)


def filler(step):
    def fill(first, out):
        for row in range(len(out)):
            out[row] = sample(step, first + row)[: out.shape[1]]
        return (first << 40, first, len(out))

    return fill


def written(sums):
    high, low, count = sums
    return StepDigest(high=high, low=low, count=count).hex()


def started(mesh, engine_spec=None):
    """A new engine at step 0 in this mesh."""
    engine = Engine(engine_spec or spec())
    engine.form(mesh)
    engine.reset()
    return engine


def formed(seat, layout, engine_spec):
    """A mesh of this layout, and a new engine at step 0 in it."""
    mesh = seat.mesh(layout, engine_spec.zero.shard_size(layout.dp))
    return mesh, started(mesh, engine_spec)


def work_of(mesh, step, **more):
    settings = {
        "fill": filler(step),
        "write_digest": written,
        "stamp": lambda *_: None,
        **more,
    }
    return Work(mesh=mesh, fence=mesh.world.fence, generation=mesh.world.generation, **settings)


def state_hash(engine):
    digest = hashlib.sha256()
    for fragment, tensor in engine.fragments():
        digest.update(str(fragment).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
