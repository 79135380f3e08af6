"""The state in memory, cut anew for other pipelines while it is trained: the same bits."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from piped import TIED, Piped, boxes, differences, formed, put_together, steps
from small_engine import zero

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.state.headers import header_of
from remesh.parallel.state.reshard import ReshardError
from remesh.parallel.state.root_manifest import CheckpointRef
from remesh.parallel.state.shards import encode_fragments, write_shard
from remesh.parallel.state.storage import scatter
from remesh.parallel.step.engine import Engine

DEALT = (4, 1, 2)
MORE = {"model": TIED}
STEPS_EACH = 2


@dataclass(frozen=True, kw_only=True)
class Life:
    """One mesh of a run, and the steps that it trains."""

    layout: Layout
    case: Piped = field(default_factory=lambda: Piped(more=MORE))

    @property
    def spec(self):
        return self.case.spec(DEALT)


def shared(stage, **more):
    return Piped(more={**MORE, "zero": zero(stage, **more)})


LIVES = {
    "alone": Life(layout=Layout()),
    "pp2": Life(layout=Layout(pp=2)),
    "pp3": Life(layout=Layout(pp=3)),
    "pp4": Life(layout=Layout(pp=4)),
    "own layers": Life(layout=Layout(pp=3), case=Piped(layers=(2, 5, 1), more=MORE)),
    "interleaved": Life(layout=Layout(pp=2), case=Piped(schedule="interleaved", more=MORE)),
    "folded": Life(layout=Layout(pp=2), case=Piped(schedule="dualpipe-v", more=MORE)),
    "halves": Life(layout=Layout(pp=4), case=Piped(schedule="zb-h1", more=MORE)),
    "zero1": Life(layout=Layout(dp=2, pp=2), case=shared(1)),
    "zero3": Life(layout=Layout(dp=2, pp=2), case=shared(3)),
    "dp4 hybrid": Life(layout=Layout(dp=4), case=shared(3, group=2)),
}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a rank held, as its vault keeps it."""

    path: Path

    @contextmanager
    def open(self):
        yield self

    def header(self):
        encoded = self.path.read_bytes()
        return header_of(encoded, size_bytes=len(encoded))

    num_readers = 1
    run_bytes = 2**20

    def read_into(self, start, into):
        return scatter(self.path.read_bytes()[start:][: sum(map(len, into))], into)


def live(seat, names, folder):
    """Ranks beyond a mesh's size leave a snapshot, which rank 0 reads, and may come back later."""
    torch.set_num_threads(1)
    engine, step, results, size = None, 0, [], 0
    for number, name in enumerate(names):
        life, fresh = LIVES[name], Engine(LIVES[name].spec)
        size, before = life.layout.world_size, size
        if seat.rank < size:
            slots = [slot_of(seat, folder, rank, number) for rank in range(size, before)]
            holding = engine.holding() if engine else None
            mesh = mesh_of(seat, life, number)
            fresh = formed(mesh, life.case, life.spec)
            if step:
                fresh.share(holding, step, () if seat.rank else slots, round_bytes=3000)
            else:
                fresh.reset()
            results += steps(fresh, range(step + 1, step + STEPS_EACH + 1))
            mesh.close()
        elif seat.rank < before:
            leave_snapshot(seat, engine, folder, number)
        engine, step = fresh, step + STEPS_EACH
    return results, boxes(engine) if engine.at_step else []


def leave_snapshot(seat, engine, folder, number):
    encoded = encode_fragments(engine.fragments(), CheckpointRef(step=engine.at_step, generation=1))
    write_shard(LocalStorage(folder), f"{number}-{seat.rank}", encoded)
    (folder / f"{number}-{seat.rank}.held").write_text(
        " ".join(map(str, engine.shard_state.held.to_numbers()))
    )
    seat.say(f"snapshot {number}")


def slot_of(seat, folder, rank, number):
    seat.hear(f"snapshot {number}", of=rank)
    numbers = (folder / f"{number}-{rank}.held").read_text().split()
    return SlotSource(
        name=f"the slot of rank {rank}",
        held=Held.from_numbers([*map(int, numbers)]),
        open=Snapshot(path=folder / f"{number}-{rank}").open,
    )


def mesh_of(seat, life, number):
    part = replace(seat, size=life.layout.world_size)
    generation = seat.generation * 1000 + 10**9 + number
    shards = life.spec.zero.shard_size(life.layout.dp)
    return part.mesh(life.layout, shards, generation=generation)


@pytest.fixture(scope="module")
def unbroken(sessions_pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return put_together(sessions_pool.run(live, 1, ["alone"] * 4, folder))


@pytest.mark.parametrize(
    "names",
    [
        ("alone", "pp2", "pp4", "pp3"),
        ("pp3", "own layers", "alone", "pp4"),
        ("interleaved", "folded", "pp2", "halves"),
        ("folded", "zero1", "interleaved", "zero3"),
        ("zero3", "pp4", "dp4 hybrid", "folded"),
    ],
)
def test_a_change_of_the_pipeline_in_a_live_run_keeps_the_bits(pool, unbroken, tmp_path, names):
    outcomes = pool.run(live, 4, names, tmp_path)
    found = put_together([(outcomes[0][0], parts) for _, parts in outcomes if parts])
    assert differences(found, unbroken) == []


def lose_a_stage(seat, layout, lost, more):
    """What ranks hold once the lost ones have shared what the others hold; or what they lack."""
    torch.set_num_threads(1)
    case = Piped(more=more)
    wanted = case.spec(DEALT)
    mesh = seat.mesh(layout, wanted.zero.shard_size(layout.dp))
    engine = formed(mesh, case, wanted)
    engine.reset()
    before = steps(engine, [1])
    holding = engine.holding()
    if seat.rank in lost:
        holding, engine = None, Engine(wanted)
    engine.form(mesh)
    try:
        engine.share(holding, 1)
    except ReshardError as error:
        mesh.close()
        return str(error), engine.at_step
    after = steps(engine, [2])
    mesh.close()
    return before + after, boxes(engine)


def test_a_stage_that_is_lost_comes_back_from_the_other_replica(pool):
    """Rank 1 is the second stage of the first replica, rank 3 that of the second one."""
    layout = Layout(dp=2, pp=2)
    kept = put_together(pool.run(lose_a_stage, 4, layout, (), MORE))
    for lost in ((1,), (0, 3)):
        found = put_together(pool.run(lose_a_stage, 4, layout, lost, MORE))
        assert differences(found, kept) == []


@pytest.mark.parametrize(
    ("layout", "lost", "more"),
    [
        (Layout(pp=2), (1,), MORE),
        (Layout(dp=2, pp=2), (1, 3), MORE),
        (Layout(dp=2, pp=2), (1,), {**MORE, "zero": ZeroSpec(stage=1)}),
    ],
)
def test_a_stage_that_nobody_else_holds_is_named(pool, layout, lost, more):
    outcomes = pool.run(lose_a_stage, layout.world_size, layout, lost, more)
    for rank, (text, at_step) in enumerate(outcomes):
        assert "nobody holds" in text
        assert at_step == (None if rank in lost else 1)
