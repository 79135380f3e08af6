"""A run that changes at a step has the bits of one that is started anew there with other values."""

from dataclasses import replace

import pytest
import torch
from small_engine import spec, started, state_hash, work_of
from taken_over import take_over

from remesh.actors.worker.course import Course, engine_spec
from remesh.data.building.prepare import build
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.data.stream import Stream
from remesh.orchestrator.job.amendments import changes_to, with_changes
from remesh.orchestrator.job.job import parse_job
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import ZeroSpec

K = 3  # of 2 K steps, the last one before the change
JOB = """
[job]
name = "small"
[model]
num_layers = 1
width = 16
num_heads = 2
ffn_width = 24
[data]
dir = "data"
[train]
steps = 6
global_batch = 4
microbatch = 1
seq_len = 16
warmup_steps = 2
[elastic]
max_workers = 2
"""
CHANGES = {
    "train.lr": ["train.lr=1e-3"],
    "train.clip": ["train.clip=0.05"],
    "train.weight_decay": ["train.weight_decay=0.5"],
    "train.beta1": ["train.beta1=0.5"],
    "train.beta2": ["train.beta2=0.5"],
    "train.eps": ["train.eps=1e-2"],
    "train.z_loss": ["train.z_loss=0.1"],
    "train.warmup_steps": ["train.warmup_steps=9"],
    "data.skip": ['data.skip=["5..6"]'],
    "cosine": ["train.lr_curve=cosine", "train.lr_steps=20", "train.min_lr=1e-4"],
}
CHANGES["all"] = [override for overrides in CHANGES.values() for override in overrides]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("amended")
    text = "to be or not to be, that is the question, whether tis nobler in the mind to suffer\n"
    (root / "text.txt").write_text("".join(f"{n} {text}" for n in range(60)))
    build(str(root / "text.txt"), root / "data", 16)
    return root / "data"


def job_of(*overrides):
    return parse_job(JOB, name="job.toml", overrides=overrides)


def stream_of(folder, job):
    manifest = Manifest.load(folder)
    skips = parse_skips(job.data.skip)
    return Stream(folder, manifest, global_batch=4, seed=job.job.seed, skips=skips)


def copied(engine):
    return {fragment: tensor.clone() for fragment, tensor in engine.fragments()}


def stepped(engine, stream, step, mesh):
    def fill(first, out):
        digest = stream.fill(step, first, out)
        return digest.high, digest.low, digest.count

    return engine.step(step, work_of(mesh, step, fill=fill))


def began(job, mesh, state=None):
    """An engine that has never had other values, with the state at step K if there is one."""
    engine = started(mesh, engine_spec(job))
    if state is not None:
        take_over(engine, state, K)
    return engine


def oracle(folder, before, after):
    """Two runs: K steps of the one, and as many of the other on top of its state."""
    mesh = Mesh.alone()
    first, stream = began(before, mesh), stream_of(folder, before)
    results = [stepped(first, stream, step, mesh) for step in range(1, K + 1)]
    second, stream = began(after, mesh, copied(first)), stream_of(folder, after)
    results += [stepped(second, stream, step, mesh) for step in range(K + 1, 2 * K + 1)]
    return results, state_hash(second)


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_with_an_amendment_is_the_two_runs_that_it_stands_for(folder, change):
    """user 4, inputs B1."""
    before, after = job_of(), job_of(*CHANGES[change])
    wanted = changes_to(after.amendable, before.fingerprint("d"), (), K)
    amendments = with_changes((), wanted, K)
    expected, state = oracle(folder, before, after)
    for job in (before, after):  # a worker may have begun with either
        mesh = Mesh.alone()
        engine, stream = began(job, mesh), stream_of(folder, job)
        course = Course(job, engine, stream)
        course.enter(amendments, 0)
        results = []
        for step in range(1, 2 * K + 1):
            course.before(step)
            results.append(stepped(engine, stream, step, mesh))
        assert results == expected
        assert state_hash(engine) == state
    assert oracle(folder, before, before)[1] != state


def train_and_change(seat, shared):
    """Six steps in a mesh, the last three with other values."""
    torch.set_num_threads(1)
    mesh = seat.mesh(Layout(dp=seat.size), shared.shard_size(seat.size))
    engine = started(mesh, spec(12, 2, zero=shared))
    results = []
    for step in range(1, 2 * K + 1):
        if step == K + 1:
            other = {"clip": 0.05, "z_loss": 0.1, "lr": LrCurve(peak=1e-3)}
            engine.change(replace(engine.spec, optimizer=AdamW(weight_decay=0.5), **other))
        results.append(engine.step(step, work_of(mesh, step)))
    mesh.close()
    return results


def test_it_has_the_same_bits_at_every_number_of_ranks_and_stage(pool):
    [expected] = pool.run(train_and_change, 1, ZeroSpec())
    assert [result.lr for result in expected[K:]] == [1e-3] * K
    for size, stage in ((2, 0), (3, 1), (2, 2), (3, 3)):
        shared = ZeroSpec(stage=stage, bucket_bytes=1 << 14)
        for results in pool.run(train_and_change, size, shared):
            assert results == expected, (size, stage)
