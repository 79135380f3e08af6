"""Training in pipelines, case after case in the same processes, and the whole outcome of each."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from small_engine import spec, work_of

from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import legal_schedule, pipeline_of
from remesh.parallel.step.engine import Engine

NUM_STEPS = 2
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v")
MODEL = ModelConfig(
    num_layers=8, width=32, num_heads=4, num_kv_heads=2, ffn_width=48, vocab_size=61, seq_len=20
)
TIED = replace(
    MODEL,
    norm="layer",
    positions="learned",
    activation="gelu",
    bias=True,
    qk_norm=True,
    tied=True,
)


@dataclass(frozen=True, kw_only=True)
class Piped:
    """A schedule, layers of its stages, leaves of the replicas; `more` is the engine's spec."""

    schedule: str = "1f1b"
    layers: tuple = ()
    leaves: tuple = ()
    more: dict = field(default_factory=dict)

    def spec(self, dealt):
        num_leaves, microbatches_per_leaf, microbatch = dealt
        chosen = spec(num_leaves, microbatches_per_leaf, **{"model": MODEL, **self.more})
        return replace(chosen, microbatch=microbatch)

    def pipeline(self, ranks):
        return pipeline_of(self.schedule, ranks, 2, self.layers) if ranks > 1 else Pipeline()


def legal(schedule, ranks, microbatches):
    return legal_schedule(schedule, ranks, microbatches)[0] == schedule


def train(seat, layout, cases, dealt):
    """Of each case: what the steps say, and the state as boxes of whole tensors."""
    torch.set_num_threads(1)
    meshes, outcomes = {}, []
    for case in cases:
        wanted = case.spec(dealt)
        shard_size = wanted.zero.shard_size(layout.dp, layout.cp)
        if shard_size not in meshes:
            generation = seat.generation * 1000 + 10**9 + shard_size
            meshes[shard_size] = seat.mesh(layout, shard_size, generation=generation)
        engine = formed(meshes[shard_size], case, wanted)
        engine.reset()
        outcomes.append((steps(engine, range(1, NUM_STEPS + 1)), boxes(engine)))
    for mesh in meshes.values():
        mesh.close()
    return outcomes


def formed(mesh, case, wanted):
    engine = Engine(wanted)
    engine.form(mesh, case.leaves, case.schedule, case.pipeline(mesh.layout.pp))
    return engine


def steps(engine, numbers, **more):
    mesh = engine.assembly.mesh
    return [engine.step(number, work_of(mesh, number, **more)) for number in numbers]


def boxes(engine):
    return [(f.name, f.global_shape, f.in_whole, t.numpy()) for f, t in engine.fragments()]


def put_together(outcomes):
    """The results of all ranks, which agree, and whole tensors, of which copies agree."""
    whole, seen = {}, {}
    for results, parts in outcomes:
        assert results == outcomes[0][0]
        for name, shape, where, part in parts:
            tensor = whole.setdefault(name, np.zeros(shape, part.dtype))
            known = seen.setdefault(name, np.zeros(shape, bool))
            assert np.array_equal(tensor[where][known[where]], part[known[where]]), name
            tensor[where], known[where] = part, True
    assert all(known.all() for known in seen.values())
    return outcomes[0][0], whole


def run(pool, layout, cases, dealt=(4, 2, 2)):
    """The whole outcome of each case, by its name."""
    ranks = pool.run(train, layout.world_size, layout, list(cases.values()), dealt)
    return {
        name: put_together(outcomes)
        for name, outcomes in zip(cases, zip(*ranks, strict=True), strict=True)
    }


def differences(found, expected):
    """Names of what differs in any bit."""
    (results, tensors), (expected_results, expected_tensors) = found, expected
    assert tensors.keys() == expected_tensors.keys()
    names = [name for name, t in tensors.items() if t.tobytes() != expected_tensors[name].tobytes()]
    return names + ["results"] * (results != expected_results)


def assert_same(found, expected):
    unlike = {name: differences(outcome, expected) for name, outcome in found.items()}
    assert not any(unlike.values()), unlike
