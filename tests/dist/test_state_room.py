"""A worker that waits lays out the memory of its state, and finds it there when it is called."""

import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_engine import MODEL, spec

from remesh.actors.cluster.this_machine import free_memory
from remesh.actors.worker.laying_out import has_room, likely_bytes, room_for
from remesh.orchestrator.job.job import load_job
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.pages.state_room import StateRoom
from remesh.parallel.step.engine import Engine

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
LARGE = spec(model=replace(MODEL, width=768, ffn_width=2048, num_heads=4, num_kv_heads=4))
FEW = 10  # pages


def faults(function):
    """How many pages had to be made meanwhile."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    function()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def laid_out(size_bytes):
    room = StateRoom(size_bytes)
    room.lay_out()
    return room


def flats(engine):
    """What of the state is large enough to lie in a room."""
    shards = engine.shard_state.shards
    return [flat for shard in shards for flat in shard.tensors if flat.nbytes >= 2**20]


def joined(room):
    """An engine that is about to receive its state."""
    engine = Engine(LARGE, room=room)
    engine.form(Mesh.alone())
    return engine


def fill(engine):
    for flat in flats(engine):
        flat.fill_(1.0)


def state_bytes():
    return sum(flat.nbytes for flat in flats(joined(None)))


def test_a_state_that_lies_in_a_room_is_filled_without_a_page_to_make():
    size_bytes = state_bytes()
    ready, bare = joined(laid_out(size_bytes + 2**20)), joined(None)
    made = faults(lambda: fill(bare))
    assert made >= size_bytes >> 21
    assert faults(lambda: fill(ready)) <= min(FEW, made // 2)


@pytest.mark.parametrize("share", [0.0, 0.3, 2.0])
def test_a_room_too_small_or_too_large_changes_nothing_but_where_memory_lies(share):
    found, expected = joined(laid_out(int(share * state_bytes()))), joined(None)
    for engine in (found, expected):
        engine.reset()
    pairs = zip(found.fragments(), expected.fragments(), strict=True)
    assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)


def test_what_was_laid_out_in_vain_goes_back_to_the_system():
    spare_bytes = 64 << 20
    room = laid_out(spare_bytes)
    before = resident_bytes()
    assert room.take(2**20) is not None
    room.close()
    assert before - resident_bytes() >= spare_bytes * 3 // 4


def resident_bytes():
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    ]
    return int(line.split()[1]) << 10


def test_only_the_first_state_lies_in_the_room():
    room = laid_out(3 * state_bytes())
    engine = joined(room)
    assert room.take(1) is None
    engine.reset()
    landing = engine.landing()
    own = {flat.untyped_storage().data_ptr() for flat in flats(engine)}
    new = {flat.untyped_storage().data_ptr() for shard in landing.shards for flat in shard.tensors}
    assert not own & new
    landing.shards[-1].values.fill_(1.0)
    assert not any(shard.slots["exp_avg"].any() for shard in engine.shard_state.shards)


def test_who_is_called_waits_for_no_page_that_is_not_under_way():
    room = StateRoom(1 << 30)
    room.stop()
    room.lay_out()
    assert room.take(1) is None


def test_a_room_that_is_closed_amid_the_laying_out_ends_it():
    room = StateRoom(1 << 30)
    thread = threading.Thread(target=room.lay_out)
    thread.start()
    room.close()
    thread.join()
    assert room.take(1) is None


def test_no_more_is_laid_out_once_the_machine_has_not_as_much_again():
    """Several workers of a machine lay out at once: each has seen what all of them want."""
    asked = []

    def may(left_bytes, size_bytes):
        asked.append((left_bytes, size_bytes))
        return len(asked) < 3

    room = StateRoom(1 << 30)
    room.lay_out(may)
    step = asked[0][0] - asked[1][0]
    assert asked == [(2**30 - step * n, 2**30) for n in range(3)]
    assert room.take(2 * step) is not None
    assert room.take(1) is None
    room.close()


def test_there_is_room_for_what_is_left_if_as_much_as_the_whole_stays_free():
    free_bytes = free_memory()
    assert has_room(free_bytes // 4, free_bytes // 4)
    assert not has_room(free_bytes // 2, free_bytes * 3 // 4)


def test_a_rank_of_the_largest_mesh_is_what_room_is_made_for():
    job = load_job(TINY)
    assert likely_bytes(job) == 12 * 869_504
    assert room_for(job) is not None
