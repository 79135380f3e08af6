"""A crash at every operation of a save: at every moment one complete checkpoint exists."""

import pytest
from by_ranges import ByRanges
from small_checkpoint import manifest_of, newest_state, save, write

from remesh.parallel.state.checkpoint import commit, committed, prune
from remesh.parallel.state.retention import Retention
from remesh.parallel.state.root_manifest import CheckpointRef


class Crash(Exception):  # noqa: N818 - it stands for the end of a process
    pass


class MemoryStorage(ByRanges):
    """Keeps blobs in a dict. Before or after its operation number `crash_at` it raises."""

    def __init__(self):
        self.blobs = {}
        self.crash_at = None
        self.crash_after = False
        self.num_operations = 0

    def _operate(self, change):
        self.num_operations += 1
        dies = self.num_operations == self.crash_at
        if dies and not self.crash_after:
            raise Crash
        result = change()
        if dies:
            raise Crash
        return result

    def _look_up(self, path):
        if path not in self.blobs:
            raise FileNotFoundError(path)
        return self.blobs[path]

    def get(self, path):
        return self._operate(lambda: self._look_up(path))

    def get_range(self, path, offset, length):
        return self._operate(lambda: self._look_up(path)[offset : offset + length])

    def put(self, path, data):
        self._operate(lambda: self.blobs.__setitem__(path, data))

    def put_if_absent(self, path, data, head=None):
        if head:
            head.fill()
        return self._operate(
            lambda: path not in self.blobs and not self.blobs.__setitem__(path, data)
        )

    def list(self, prefix):
        return self._operate(lambda: sorted(p for p in self.blobs if p.startswith(prefix)))

    def delete(self, path):
        self._operate(lambda: self.blobs.pop(path, None))


def num_operations_of_a_save():
    storage = MemoryStorage()
    save(storage, 10)
    before = storage.num_operations
    save(storage, 20)
    return storage.num_operations - before


@pytest.mark.parametrize("crash_after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_operation_leaves_a_complete_checkpoint(crash_after):
    total = num_operations_of_a_save()
    assert total > 15
    seen = []
    for number in range(1, total + 1):
        storage = MemoryStorage()
        save(storage, 10)
        storage.crash_at = storage.num_operations + number
        storage.crash_after = crash_after
        with pytest.raises(Crash):
            save(storage, 20)
        seen.append(newest_state(storage))
        ref = save(storage, 20, generation=2)
        assert newest_state(storage) == 20
        assert {path.partition("/")[0] for path in storage.blobs} == {ref.name}
    assert set(seen) == {10, 20}
    assert seen == sorted(seen)


def test_the_same_attempt_can_be_made_again_after_every_crash():
    for number in range(1, num_operations_of_a_save() + 1):
        storage = MemoryStorage()
        save(storage, 10)
        storage.crash_at = storage.num_operations + number
        with pytest.raises(Crash):
            save(storage, 20)
        save(storage, 20)
        assert newest_state(storage) == 20


def steps(storage):
    return [(ref.step, ref.generation) for ref in committed(storage)]


def test_as_many_as_asked_for_are_kept():
    storage = MemoryStorage()
    for step in (10, 20, 30, 40):
        save(storage, step, keep=3)
    assert steps(storage) == [(40, 1), (30, 1), (20, 1)]
    prune(storage, keep=0)
    assert steps(storage) == [(40, 1)]
    prune(storage, keep=1)
    assert newest_state(storage) == 40


def test_a_damaged_checkpoint_does_not_count_among_the_kept():
    storage = MemoryStorage()
    for step in (10, 20, 30):
        save(storage, step, keep=9)
    victim = next(path for path in storage.blobs if "00030" in path and "rank-1" in path)
    storage.blobs[victim] = storage.blobs[victim][:-1]
    prune(storage, keep=1)
    assert steps(storage) == [(30, 1), (20, 1)]
    del storage.blobs[victim]
    prune(storage, keep=1)
    assert steps(storage) == [(30, 1), (20, 1)]


def rated(storage, losses):
    for step, loss in losses.items():
        ref = CheckpointRef(step=step, generation=1)
        commit(storage, manifest_of(ref, write(storage, ref), metrics={"loss": loss}))


def test_the_best_every_nth_and_a_way_back_stay_beside_the_last():
    storage = MemoryStorage()
    rated(storage, dict.fromkeys(range(20, 301, 20), 5.0) | {60: 1.0})
    storage.put("step-00000020.gen-1.start-0/notes.txt", b"mine")
    prune(storage, Retention(last=2, every=100, best=1))
    assert [step for step, _ in steps(storage)] == [300, 280, 260, 200, 160, 100, 60]
    assert storage.get("step-00000020.gen-1.start-0/notes.txt") == b"mine"


def test_the_last_good_one_stays_though_all_that_are_newer_or_better_are_damaged():
    storage = MemoryStorage()
    rated(storage, {10: 9.0, 20: 1.0, 30: 2.0, 40: 3.0})
    for path in storage.list("step-"):
        if "00010" not in path and path.endswith("rank-0-of-3.safetensors"):
            storage.blobs[path] = storage.blobs[path][:-1]
    prune(storage, Retention(last=1, best=1, way_back=False))
    assert (10, 1) in steps(storage)


def test_a_crash_at_any_operation_of_a_removal_leaves_the_last_good_one_and_whole_ones():
    number, died = 0, True
    while died:
        storage = MemoryStorage()
        rated(storage, {10: 1.0, 20: 2.0, 30: 3.0})
        number += 1
        storage.crash_at = storage.num_operations + number
        try:
            prune(storage, Retention(last=1, best=1, way_back=False))
            died = False
        except Crash:
            pass
        storage.crash_at = None
        assert newest_state(storage) == 30
        for step, generation in steps(storage):
            ref = CheckpointRef(step=step, generation=generation)
            assert len(storage.list(f"{ref.name}/")) == 4
    assert steps(storage) == [(30, 1), (10, 1)]
    assert number > 10


def test_a_protected_checkpoint_stays():
    storage = MemoryStorage()
    for step in (10, 20, 30):
        save(storage, step, keep=9)
    prune(storage, keep=1, protect=[CheckpointRef(step=10, generation=1)])
    assert steps(storage) == [(30, 1), (10, 1)]


def test_an_attempt_under_way_is_left_alone_and_an_old_one_removed():
    storage = MemoryStorage()
    for step, generation in [(10, 1), (20, 2), (30, 2), (25, 3)]:
        next(write(storage, CheckpointRef(step=step, generation=generation)))
    save(storage, 20, generation=2)
    left = {path.partition("/")[0] for path in storage.blobs}
    assert left == {
        "step-00000020.gen-2.start-0",
        "step-00000030.gen-2.start-0",
        "step-00000025.gen-3.start-0",
    }
    storage.blobs["step-00000010.gen-1.start-0/notes.txt"] = b"mine"
    prune(storage, keep=1)
    assert storage.blobs["step-00000010.gen-1.start-0/notes.txt"] == b"mine"
