"""What other users of the machine have put where our files go: it is neither used nor removed."""

import os
import signal
import subprocess

import pytest

from remesh.actors.node.leftovers import folder_name, sweep, sweep_all
from remesh.actors.node.processes import look
from remesh.actors.node.stamps import SIZE_BYTES, Field, Stamps
from remesh.actors.vault.slot_memory import SlotMemory
from remesh.actors.vault.vault_memory import VaultMemory

NOBODY = 65534
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def secret(tmp_path):
    """A folder of ours in which nobody else may make anything."""
    folder = tmp_path / "secret"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def shared(tmp_path):
    """A folder in which all users may make files, such as /dev/shm."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def evil(shared, *, mode=0o700, owner=None):
    folder = shared / folder_name("evil", "n1")
    folder.mkdir()
    folder.chmod(mode)
    if owner is not None:
        os.chown(folder, owner, owner)
    return folder


def test_a_lock_that_is_a_link_makes_no_file_where_it_points(shared, secret):
    """security A1"""
    folder = evil(shared)
    (folder / "lock").symlink_to(secret / "made")
    sweep_all(shared)
    assert not list(secret.iterdir())
    with pytest.raises(OSError, match=r"lock"):
        VaultMemory(folder).open()
    assert not list(secret.iterdir())


def test_a_folder_that_is_a_link_gets_no_lock(shared, secret):
    """security A1"""
    folder = shared / folder_name("evil", "n2")
    folder.symlink_to(secret)
    sweep_all(shared)
    with pytest.raises(OSError, match=r"evil-n2"):
        VaultMemory(folder, tries=1).open()
    with pytest.raises(OSError, match=r"evil-n2"):
        Stamps.create(folder, "worker-0", os.getpid())
    assert not list(secret.iterdir())
    assert folder.is_symlink()


def test_a_folder_that_is_open_to_others_is_not_taken_over(shared):
    """security A1"""
    folder = evil(shared, mode=0o777)
    with pytest.raises(PermissionError, match=r"mode 0777.*remove it"):
        VaultMemory(folder, tries=1).open()
    with pytest.raises(PermissionError, match=r"mode 0777.*remove it"):
        Stamps.create(folder, "worker-0", os.getpid())
    sweep_all(shared)
    assert list(folder.iterdir()) == []


@by_root
def test_a_folder_of_another_user_is_left_alone(shared):
    """security A1"""
    folder = evil(shared, owner=NOBODY)
    (folder / "lock").touch()
    os.chown(folder / "lock", NOBODY, NOBODY)
    sweep_all(shared)
    with pytest.raises(PermissionError, match=f"user {NOBODY}"):
        VaultMemory(folder, tries=1).open()
    with pytest.raises(PermissionError, match=f"user {NOBODY}"):
        Stamps.open_all(folder, {})
    assert [path.name for path in folder.iterdir()] == ["lock"]


@by_root
def test_a_file_of_another_user_is_no_lock_and_no_slot(shared):
    """security A1"""
    folder = evil(shared)
    for name in ("lock", "0"):
        (folder / name).write_bytes(bytes(8192))
        os.chown(folder / name, NOBODY, NOBODY)
    sweep("evil", shared)
    with pytest.raises(PermissionError, match=f"user {NOBODY}"):
        SlotMemory.open(folder / "0")
    assert len(list(folder.iterdir())) == 2


def test_a_sweep_removes_only_what_a_vault_has_made(shared):
    """security A1: a folder without a lock is no vault's, whatever its name."""
    own = evil(shared)
    (own / "thesis.txt").write_text("mine")
    dead = shared / folder_name("dead", "n1")
    memory = VaultMemory(dead)
    memory.open()
    memory.take(100)
    (dead / "thesis.txt").write_text("mine")
    os.close(memory._lock)
    empty = shared / folder_name("my", "notes")
    empty.mkdir(mode=0o700)
    sweep_all(shared)
    assert empty.exists()
    assert [path.name for path in own.iterdir()] == ["thesis.txt"]
    assert [path.name for path in dead.iterdir()] == ["thesis.txt"]


def test_a_slot_that_is_a_link_or_no_file_is_not_mapped(tmp_path, secret):
    """security A1"""
    (secret / "key").write_bytes(bytes(8192))
    (tmp_path / "0").symlink_to(secret / "key")
    os.mkfifo(tmp_path / "1")
    for name in ("0", "1"):
        with pytest.raises(OSError, match=name):
            SlotMemory.open(tmp_path / name)


def test_stamps_are_written_through_no_link(tmp_path, secret):
    """security A1"""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (secret / "key").write_bytes(b"kept")
    (folder / ".worker-0").symlink_to(secret / "key")
    Stamps.create(folder, "worker-0", os.getpid())
    assert (secret / "key").read_bytes() == b"kept"


def test_stamps_that_are_a_link_or_too_short_are_passed_over(tmp_path, secret):
    """security A1"""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    Stamps.create(folder, "worker-0", os.getpid())
    Stamps.create(secret, "worker-1", os.getpid())
    (folder / "worker-1").symlink_to(secret / "worker-1")
    (folder / "worker-2").write_bytes(bytes(SIZE_BYTES - 1))
    os.mkfifo(folder / "worker-3")
    assert list(Stamps.open_all(folder, {})) == ["worker-0"]


@by_root
def test_the_process_of_another_user_is_not_killed_for_a_stamp_with_its_pid(tmp_path):
    """security A1: neither is one that has got the pid in between."""
    other = subprocess.Popen(["sleep", "60"], user=NOBODY)
    stamps = Stamps.create(tmp_path / "run", "worker-0", os.getpid())
    stamps[Field.PID], stamps[Field.STARTED] = other.pid, look(other.pid).started
    try:
        assert stamps.process() is None
        assert not stamps.kill()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_is_killed_by_its_stamps_only_while_it_is_the_same(tmp_path):
    """security A1"""
    worker = subprocess.Popen(["sleep", "60"])
    stamps = Stamps.create(tmp_path / "run", "worker-0", worker.pid)
    stamps[Field.STARTED] -= 1
    assert not stamps.kill()
    assert worker.poll() is None
    stamps[Field.STARTED] += 1
    assert stamps.kill()
    assert worker.wait() == -signal.SIGKILL
    assert not stamps.kill()
