"""A writer's process killed at random moments of a save, on a real disk."""

import os
import random
import signal
import time

import torch
from recorded_disk import HastyDisk
from small_checkpoint import manifest_of
from whole_shards import encode_shard

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.state.checkpoint import commit, committed, prune
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import CheckpointRef, shard_file_name
from remesh.parallel.state.shards import write_shard

NUM_KILLS, MOST_KILLS = 20, 500
NUM_WRITERS = 2


def encoded_shards(ref):
    value = float(ref.step)
    return [
        encode_shard({f"w{rank}": torch.full((100_000,), value)}, ref)
        for rank in range(NUM_WRITERS)
    ]


def save(storage, ref, encoded):
    files = [
        write_shard(storage, f"{ref.name}/{shard_file_name(rank, NUM_WRITERS)}", shard)
        for rank, shard in enumerate(encoded)
    ]
    commit(storage, manifest_of(ref, files))
    prune(storage, keep=1)


def killed_after(delay_s, work):
    """Runs `work` in a child process and kills it by SIGKILL after the delay."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def duration_of_a_save(folder):
    ref = CheckpointRef(step=10, generation=1)
    encoded = encoded_shards(ref)
    started = time.perf_counter()
    save(LocalStorage(folder), ref, encoded)
    return time.perf_counter() - started


def newest_after_a_kill(folder, delay_s):
    """The checkpoint found after a kill in the save of step 20, which is then made again."""
    old, new = (CheckpointRef(step=step, generation=1) for step in (10, 20))
    storage = LocalStorage(folder, HastyDisk())
    save(storage, old, encoded_shards(old))
    encoded = encoded_shards(new)
    killed_after(delay_s, lambda: save(LocalStorage(folder), new, encoded))
    newest = committed(storage)[0]
    assert all(tensor.eq(newest.step).all() for tensor in read(storage, newest).values())
    save(storage, new, encoded)
    assert committed(storage) == [new]
    return newest


def test_a_killed_writer_leaves_the_old_checkpoint_or_the_new_one(tmp_path):
    """The delays are of a save's own length, which varies: one is at last short enough to tell."""
    draw, found = random.Random(20), []
    while len(found) < NUM_KILLS or 10 not in found:
        delay_s = draw.uniform(0, 1.2 * duration_of_a_save(tmp_path / f"timed-{len(found)}"))
        found.append(newest_after_a_kill(tmp_path / str(len(found)), delay_s).step)
        assert len(found) < MOST_KILLS, "no kill comes early enough"
