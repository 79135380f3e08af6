"""Saved under each layout, loaded under each other one: training goes on as if nothing had been.

That all of the state is there, bit by bit, is looked at for each pair of layouts, on values that
tell each element; that training goes on for five of each layout's sixteen (--all-pairs: for all).
"""

import math
from dataclasses import dataclass, field

import pytest
import torch
from by_ranges import ByRanges
from manifests import checkpoint_manifest
from small_engine import spec, work_of, zero
from taken_over import take_over

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.schedules.catalogue import pipeline_of
from remesh.parallel.spec import Precision, ZeroSpec
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.reading import read_fragments
from remesh.parallel.state.root_manifest import (
    CheckpointRef,
    shard_file_name,
)
from remesh.parallel.state.shards import encode_fragments, write_shard
from remesh.parallel.step.engine import Engine

FP64 = Precision(compute=torch.float64, gradient=torch.float64, master=torch.float64)
SAVED_STEP, LAST_STEP = 3, 5  # one step by the weights, the next by all that makes an update
REF = CheckpointRef(step=SAVED_STEP, generation=1)
LOSS_UNIT = 2.0**-24
TRAINED_FROM = (0, 1, 3, 7, 12)  # behind each layout, so that each is gone on from as often
SMALL = ModelConfig(
    num_layers=4,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    ffn_width=48,
    vocab_size=61,
    seq_len=20,
    positions="learned",
    tied=True,
)
LARGE = ModelConfig(
    num_layers=4, width=128, num_heads=4, num_kv_heads=4, ffn_width=512, vocab_size=1023, seq_len=8
)


@dataclass(frozen=True, kw_only=True)
class Case:
    layout: Layout
    zero: ZeroSpec = field(default_factory=ZeroSpec)
    sequence: bool = False
    schedule: str = "1f1b"

    def spec(self, model):
        return spec(4, 1, model=model, precision=FP64, zero=self.zero, sequence=self.sequence)

    def mesh(self, seat):
        return seat.mesh(self.layout, self.zero.shard_size(self.layout.dp))

    def engine(self, mesh, model):
        """Formed, without any state."""
        engine = Engine(self.spec(model))
        engine.form(mesh, (), self.schedule, pipeline_of(self.schedule, mesh.layout.pp, 2))
        return engine


CASES = {
    "dp1": Case(layout=Layout()),
    "dp3": Case(layout=Layout(dp=3)),
    "tp2": Case(layout=Layout(tp=2)),
    "tp2 sequence": Case(layout=Layout(tp=2), sequence=True),
    "tp4": Case(layout=Layout(tp=4)),
    "zero1": Case(layout=Layout(dp=4), zero=zero(1)),
    "zero2": Case(layout=Layout(dp=3), zero=zero(2)),
    "zero3": Case(layout=Layout(dp=4), zero=zero(3)),
    "hybrid": Case(layout=Layout(dp=4), zero=zero(3, group=2)),
    "tp2 zero3": Case(layout=Layout(dp=3, tp=2), zero=zero(3)),
    "tp2 hybrid": Case(layout=Layout(dp=4, tp=2), zero=zero(2, group=2)),
    "pp3": Case(layout=Layout(pp=3)),
    "pp2 interleaved": Case(layout=Layout(pp=2), schedule="interleaved"),
    "pp2 folded": Case(layout=Layout(pp=2), schedule="dualpipe-v"),
    "pp2 zero3": Case(layout=Layout(dp=2, pp=2), zero=zero(3)),
    "pp2 tp2": Case(layout=Layout(pp=2, tp=2), schedule="zb-h1"),
}


@dataclass
class Counting(ByRanges):
    """A storage that counts the bytes of tensors and hashes that are read from it."""

    storage: LocalStorage
    num_bytes: int = 0

    def get_range(self, path, offset, length):
        found = self.storage.get_range(path, offset, length)
        self.num_bytes += len(found)
        return found


def train_and_save(seat, name, folder):
    """The file of this rank and what the steps after it gave."""
    case = CASES[name]
    torch.set_num_threads(1)
    mesh = case.mesh(seat)
    engine = case.engine(mesh, SMALL)
    engine.reset()
    train(engine, mesh, 1, SAVED_STEP)
    file = save(engine, mesh, folder)
    results = train(engine, mesh, SAVED_STEP + 1, LAST_STEP)
    mesh.close()
    return file, results


def save_large(seat, name, folder):
    case = CASES[name]
    torch.set_num_threads(1)
    mesh = case.mesh(seat)
    engine = filled(case, mesh)
    file = save(engine, mesh, folder)
    mesh.close()
    return file, None


def train(engine, mesh, first, last):
    results = [engine.step(step, work_of(mesh, step)) for step in range(first, last + 1)]
    return [(result.loss, result.grad_norm) for result in results]


def save(engine, mesh, folder):
    encoded = encode_fragments(own_part(engine.shard_state, mesh), REF)
    path = f"{REF.name}/{shard_file_name(mesh.world.rank, mesh.world.size)}"
    return write_shard(LocalStorage(folder), path, encoded)


def filled(case, mesh):
    """An engine whose every element is known to all ranks of all layouts."""
    engine = case.engine(mesh, LARGE)
    engine.reset()
    state = engine.shard_state
    weights = dict(state.weights())
    for (_, moment), weight in zip(state.slots(), 2 * list(weights.values()), strict=True):
        moment.copy_(weight)
    for shard in state.shards:
        shard.slots["exp_avg"].mul_(3)
        shard.slots["exp_avg_sq"].square_()
    state.num_updates.fill_(11)
    return engine


def load_and_train(seat, name, folders):
    case = CASES[name]
    torch.set_num_threads(1)
    mesh = case.mesh(seat)
    outcomes = []
    for folder in folders:
        engine = case.engine(mesh, SMALL)
        load(engine, LocalStorage(folder))
        outcomes.append(train(engine, mesh, SAVED_STEP + 1, LAST_STEP))
    mesh.close()
    return outcomes


def load_large(seat, name, folders):
    """For each: whether it is what was saved, and bytes read for each byte of the own part."""
    case = CASES[name]
    torch.set_num_threads(1)
    mesh = case.mesh(seat)
    expected = filled(case, mesh).fragments()
    num_bytes = sum(tensor.nbytes for _, tensor in expected)
    engine = case.engine(mesh, LARGE)
    outcomes = []
    for folder in folders:
        storage = Counting(LocalStorage(folder))
        load(engine, storage)
        same = all(
            torch.equal(t, e) for (_, t), (_, e) in zip(engine.fragments(), expected, strict=True)
        )
        outcomes.append((same, storage.num_bytes / num_bytes))
    mesh.close()
    return outcomes


def load(engine, storage):
    wanted = [fragment for fragment, _ in engine.fragments()]
    take_over(engine, read_fragments(storage, REF, wanted), REF.step)


def saved(pool, function, root):
    """The folder and the results of each layout."""
    found = {}
    for name, case in CASES.items():
        folder = root / name
        outcomes = pool.run(function, case.layout.world_size, name, folder)
        assert (
            commit(
                LocalStorage(folder), checkpoint_manifest(REF, tuple(file for file, _ in outcomes))
            )
            == REF
        )
        found[name] = folder, outcomes[0][1]
    return found


@pytest.fixture(scope="module")
def trained(sessions_pool, tmp_path_factory):
    return saved(sessions_pool, train_and_save, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def large(sessions_pool, tmp_path_factory):
    return saved(sessions_pool, save_large, tmp_path_factory.mktemp("large"))


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_from_every_other_layout(pool, trained, name, request):
    case = CASES[name]
    if not request.config.getoption("--all-pairs"):
        trained = {other: trained[other] for other in sources_of(name)}
    folders = [folder for folder, _ in trained.values()]
    outcomes = pool.run(load_and_train, case.layout.world_size, name, folders)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    for other, found, (_, unbroken) in zip(trained, outcomes[0], trained.values(), strict=True):
        if same_bits(case, CASES[other]):
            assert found == unbroken, other
        for (loss, norm), (loss_before, norm_before) in zip(found, unbroken, strict=True):
            assert abs(loss - loss_before) <= LOSS_UNIT, other
            assert math.isclose(norm, norm_before, rel_tol=1e-10), other


@pytest.mark.parametrize("name", CASES)
def test_a_rank_reads_its_own_part_and_hardly_more(pool, large, name):
    case = CASES[name]
    folders = [folder for folder, _ in large.values()]
    outcomes = pool.run(load_large, case.layout.world_size, name, folders)
    for other, ranks in zip(large, zip(*outcomes, strict=True), strict=True):
        assert all(same for same, _ in ranks), other
        assert max(ratio for _, ratio in ranks) <= 1.1, other


def sources_of(name):
    names = list(CASES)
    return [names[(names.index(name) + behind) % len(names)] for behind in TRAINED_FROM]


def same_bits(one, other):
    return (one.layout.tp, one.sequence) == (other.layout.tp, other.sequence)
