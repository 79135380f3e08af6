"""Full and read-only disks, two runs in one folder, writers that come too late."""

import errno
import os
from dataclasses import replace

import needed
import pytest
import torch
from recorded_disk import HastyDisk
from small_checkpoint import manifest_of, newest_state, save, state, write, write_and_commit

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit, committed, prune
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import CheckpointRef

NEW = CheckpointRef(step=20, generation=1)
NOBODY = 65534


class FailingDisk(HastyDisk):
    """From its call number `fails_at` on it takes no more bytes and names, but still deletes."""

    def __init__(self, code, fails_at):
        self.code = code
        self.calls_left = fails_at

    def _step(self):
        self.calls_left -= 1
        if self.calls_left < 0:
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path, mode):
        self._step()
        return super().create(path, mode)

    def place(self, file, data, at):
        self._step()
        return super().place(file, data, at)

    def sync(self, file):
        self._step()
        super().sync(file)

    def replace(self, source, target):
        self._step()
        super().replace(source, target)

    def link(self, source, target):
        self._step()
        super().link(source, target)

    def make_folder(self, folder):
        self._step()
        super().make_folder(folder)

    def sync_folder(self, folder):
        self._step()
        super().sync_folder(folder)


def hasty(root):
    return LocalStorage(root, HastyDisk())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_fails_at_any_call_is_an_error_and_the_old_state_stays(tmp_path, code):
    save(hasty(tmp_path), 10)
    seen = []
    while error := error_of_a_save(LocalStorage(tmp_path, FailingDisk(code, len(seen)))):
        assert error.errno == code
        seen.append(newest_state(hasty(tmp_path)))
        assert not [name for _, _, files in os.walk(tmp_path) for name in files if "tmp" in name]
    assert seen[0] == 10
    assert len(seen) > 15
    assert newest_state(hasty(tmp_path)) == 20


def error_of_a_save(storage):
    try:
        write_and_commit(storage, NEW)
    except OSError as error:
        return error
    return None


def as_nobody(work):
    """The errno with which `work` ends when a user does it who may not do everything."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            code = 0
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def open_folder(tmp_path):
    """One that other users may pass through, which those of pytest are not."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def root():
    needed.root()


needs_root = pytest.mark.usefixtures("root")


@needs_root
def test_a_read_only_folder_is_an_error_and_the_old_state_stays(open_folder):
    save(hasty(open_folder), 10)
    assert as_nobody(lambda: save(hasty(open_folder), 20)) == errno.EACCES
    assert newest_state(hasty(open_folder)) == 10


@needs_root
def test_a_writable_folder_below_a_read_only_one_is_saved_to(open_folder):
    own = open_folder / "read-only" / "own"
    own.mkdir(parents=True)
    os.chown(own, NOBODY, NOBODY)
    own.parent.chmod(0o555)
    assert as_nobody(lambda: save(LocalStorage(own), 10)) == 0
    assert newest_state(LocalStorage(own)) == 10


def test_of_two_runs_in_one_folder_one_has_its_checkpoint_and_the_other_an_error(tmp_path):
    """Their writers take turns with files of the same names: no file is written over."""
    one, other = hasty(tmp_path), hasty(tmp_path)
    changed = {name: tensor + 1 for name, tensor in state(20).items()}
    ones, others = write(one, NEW), write(other, NEW, tensors=changed)
    files = [next(ones), next(ones)]
    with pytest.raises(FileExistsError, match="is there already, and is another file"):
        next(others)
    files.append(next(ones))
    commit(one, manifest_of(NEW, files))
    with pytest.raises(FileExistsError, match="is there already, and is another file"):
        write_and_commit(other, NEW, tensors=changed)
    assert newest_state(one) == 20


def test_starts_that_write_the_same_step_at_once_leave_each_others_files_alone(tmp_path):
    """control A13: the put of a start that was over landed on what the next one had committed."""
    storage = hasty(tmp_path)
    later = replace(NEW, start=2)
    changed = {name: tensor + 1 for name, tensor in state(20).items()}
    late = write(storage, replace(NEW, start=1), tensors=changed)
    next(late)
    write_and_commit(storage, later)
    files = [*late]
    assert len(files) == 2
    assert committed(storage) == [later]
    assert newest_state(storage) == 20


def test_a_second_writer_that_comes_late_changes_nothing_of_a_committed_checkpoint(tmp_path):
    storage = hasty(tmp_path)
    write_and_commit(storage, NEW)
    with pytest.raises(FileExistsError, match="is another file"):
        next(write(storage, NEW, tensors={"w0": torch.zeros(3)}))
    assert newest_state(storage) == 20


def test_a_slow_writer_of_an_abandoned_generation_is_never_the_newest(tmp_path):
    storage = hasty(tmp_path)
    save(storage, 10)
    slow = write(storage, CheckpointRef(step=30, generation=1))
    next(slow)
    save(storage, 20, generation=2, keep=2)
    late = [next(slow), next(slow)]
    assert newest_state(storage) == 20
    with pytest.raises(CheckpointError, match="of all writers' files it has"):
        commit(storage, manifest_of(CheckpointRef(step=30, generation=1), late))
    save(storage, 30, generation=2, keep=2)
    assert newest_state(storage) == 30
    assert {path.partition("/")[0] for path in storage.list("step-")} == {
        "step-00000020.gen-2.start-0",
        "step-00000030.gen-2.start-0",
    }


def test_a_file_told_for_an_earlier_attempt_commits_nothing_of_a_later_one(tmp_path):
    """The completion of attempt 1 arrives while the writer of attempt 2 is still at work."""
    storage = hasty(tmp_path)
    first, second = (CheckpointRef(step=5, generation=generation) for generation in (1, 2))
    early = list(write(storage, first))
    with pytest.raises(CheckpointError, match="is missing"):
        commit(storage, manifest_of(second, early))
    list(write(storage, second, tensors={"w": torch.ones(9)}))
    with pytest.raises(CheckpointError, match=r"it has not|hash of its header"):
        commit(storage, manifest_of(second, early))
    assert committed(storage) == []


def test_nothing_older_goes_before_the_new_one_is_committed(tmp_path):
    storage = hasty(tmp_path)
    save(storage, 10)
    writer = write(storage, NEW)
    files = [next(writer), next(writer)]
    prune(storage, keep=1)
    assert newest_state(storage) == 10
    files.append(next(writer))
    prune(storage, keep=1)
    assert newest_state(storage) == 10
    commit(storage, manifest_of(NEW, files))
    prune(storage, keep=1)
    assert [ref.step for ref in committed(storage)] == [20]


def test_a_leftover_of_more_writers_is_no_part_of_the_checkpoint_and_goes_with_it(tmp_path):
    storage = hasty(tmp_path)
    list(write(storage, NEW, num_writers=5))
    write_and_commit(storage, NEW, num_writers=2)
    assert newest_state(storage) == 20
    save(storage, 30)
    assert [path.partition("/")[0] for path in storage.list("")] == [
        "step-00000030.gen-1.start-0"
    ] * 4


def test_when_the_newest_is_damaged_it_says_so_and_the_one_before_is_whole(tmp_path):
    storage = hasty(tmp_path)
    for step in (10, 20):
        save(storage, step, keep=2)
    path = tmp_path / NEW.name / "rank-1-of-3.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    newest, before = committed(storage)
    with pytest.raises(CheckpointError, match=r"rank-1-of-3\.safetensors: the hash of w"):
        read(storage, newest)
    assert read(storage, before)["w0"].eq(10).all()


def test_runs_on_more_and_fewer_ranks_read_the_newest_step_and_no_files_of_another(tmp_path):
    storage = hasty(tmp_path)
    for step, num_writers in ((10, 4), (20, 2), (30, 4)):
        ref = CheckpointRef(step=step, generation=1)
        write_and_commit(storage, ref, num_writers=num_writers)
        assert newest_state(storage) == step
