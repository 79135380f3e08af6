"""A process killed and a power cut before every call that a save makes to the disk.

The calls are those of `Disk`: create, write, sync, replace, link, unlink, folders made, synced and
removed. What a power cut leaves is worked out from what has been synced by then.
"""

import pytest
import torch
from recorded_disk import Crash, HastyDisk, RecordedDisk, cuts
from small_checkpoint import manifest_of, newest_state, save, write

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.state.checkpoint import commit, committed, prune
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import CheckpointRef, shard_file_name
from remesh.parallel.state.shard_buffer import ShardBuffer

OLD, NEW = (CheckpointRef(step=step, generation=1) for step in (10, 20))
NUM_WRITERS = 2


class Save:
    """The save of step 20 over one of step 10, as far as it comes, on a recorded disk."""

    def __init__(self, root):
        root.mkdir()
        self.disk = RecordedDisk(root)
        self.storage = LocalStorage(root, self.disk)
        self.told = False
        self.save(OLD)
        self.first_call = self.disk.num_calls + 1

    def save(self, ref):
        files = list(write(self.storage, ref, NUM_WRITERS))
        commit(self.storage, manifest_of(ref, files))
        self.told = ref == NEW
        prune(self.storage, keep=1)

    def until(self, call):
        """Whether the process dies before that call of the save of step 20."""
        self.disk.crash_at = self.first_call + call
        try:
            self.save(NEW)
        except Crash:
            return True
        finally:
            self.disk.revive()
        return False


def saves_that_die(tmp_path):
    """The save, dead before its first call, before its second, and so on to its last."""
    call = 0
    while (attempt := Save(tmp_path / f"run-{call}")).until(call):
        yield call, attempt
        call += 1


def check(storage, *, told):
    """The newest checkpoint is whole, and the new one if that was told; one can save again."""
    found = newest_state(storage)
    assert found == 20 or not told
    save(storage, 20, generation=2)
    assert newest_state(storage) == 20
    assert [ref.generation for ref in committed(storage)] == [2]
    return found


def test_a_save_makes_all_kinds_of_calls(tmp_path):
    attempt = Save(tmp_path / "run")
    assert not attempt.until(10**6)
    calls = attempt.disk.calls[attempt.first_call - 1 :]
    assert {*calls} == {
        *("create", "write", "sync", "link", "unlink"),
        *("make_folder", "sync_folder", "remove_folder"),
    }
    assert len(calls) == 31


def test_a_process_killed_before_any_call_leaves_the_old_state_or_the_new_one(tmp_path):
    found = [
        check(LocalStorage(attempt.storage.root, HastyDisk()), told=attempt.told)
        for _, attempt in saves_that_die(tmp_path)
    ]
    assert found == sorted(found)
    assert set(found) == {10, 20}


@pytest.mark.parametrize("way", ["gone", "there", "by lot"])
def test_a_power_cut_before_any_call_leaves_the_old_state_or_the_new_one(tmp_path, way):
    found = set()
    for call, attempt in saves_that_die(tmp_path):
        root = tmp_path / f"after-{call}"
        attempt.disk.after_a_power_cut(root, cuts(seed=call)[way])
        found.add(check(LocalStorage(root, HastyDisk()), told=attempt.told))
    assert found == {10, 20}


def test_what_is_committed_after_a_crash_lasts_though_the_crashed_attempt_made_its_folder(tmp_path):
    """Killed anywhere, the attempt made again; as soon as its commit is told, the power fails."""
    for call, attempt in saves_that_die(tmp_path):
        if committed(attempt.storage)[0] == NEW:
            break
        files = list(write(attempt.storage, NEW, NUM_WRITERS))
        commit(attempt.storage, manifest_of(NEW, files))
        root = tmp_path / f"after-{call}"
        attempt.disk.after_a_power_cut(root, cuts(seed=call)["gone"])
        assert newest_state(LocalStorage(root, HastyDisk())) == 20
    assert call > 10


def test_a_power_cut_in_a_deletion_leaves_no_checkpoint_without_some_of_its_files(tmp_path):
    for call, attempt in saves_that_die(tmp_path):
        root = tmp_path / f"after-{call}"
        attempt.disk.after_a_power_cut(root, cuts(seed=call)["by lot"])
        storage = LocalStorage(root, HastyDisk())
        for ref in committed(storage):
            prefix = f"{ref.name}/"
            assert len(storage.list(prefix)) == NUM_WRITERS + 1


def save_large(storage, ref):
    """As a worker does it: blocks first, the hashes of them last."""
    tensor = torch.full((5000,), float(ref.step))
    buffer = ShardBuffer([(whole("w", (5000,), "float32"), tensor)])
    buffer.copy(ref)
    file = buffer.write(storage, f"{ref.name}/{shard_file_name(0, 1)}")
    commit(storage, manifest_of(ref, [file]))


@pytest.mark.parametrize("way", ["gone", "there", "by lot"])
def test_a_large_shard_is_whole_or_not_there_whenever_the_power_fails(tmp_path, way):
    found, call, dies = [], 0, True
    while dies:
        disk = RecordedDisk(tmp_path / f"run-{call}")
        disk.root.mkdir()
        storage = LocalStorage(disk.root, disk)
        save_large(storage, OLD)
        disk.crash_at = disk.num_calls + 1 + call
        try:
            save_large(storage, NEW)
            dies = False
        except Crash:
            pass
        assert disk.calls.count("write") >= 4
        root = tmp_path / f"after-{call}"
        disk.after_a_power_cut(root, cuts(seed=call)[way])
        left = LocalStorage(root, HastyDisk())
        found.append(committed(left)[0].step)
        assert read(left, committed(left)[0])["w"].eq(found[-1]).all()
        call += 1
    assert set(found) == {10, 20}
