import errno
import os
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from remesh.actors.storage.file_storage import ABANDONED_S, TEMPORARY, LocalStorage
from remesh.parallel.state.storage import Storage

UNFINISHED = f"{TEMPORARY}0123456789abcdef"


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "run")


def leftover(storage, path, *, age_s):
    """What a writer leaves that was killed before it renamed its file."""
    file = storage.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"half")
    os.utime(file, (time.time() - age_s, time.time() - age_s))
    return file


def test_it_keeps_what_checkpoints_ask_of_a_storage(storage):
    kept: Storage = storage
    kept.put("a/b/one", b"0123456789")
    kept.put("a/two", b"")
    assert kept.get("a/b/one") == b"0123456789"
    assert kept.get_range("a/b/one", 3, 4) == b"3456"
    assert kept.get_range("a/b/one", 8, 100) == b"89"
    assert kept.get_range("a/b/one", 50, 2) == b""
    room = bytearray(9)
    assert kept.read_into("a/b/one", 2, [memoryview(room)[:3], memoryview(room)[3:]]) == 8
    assert room == b"23456789\0"
    assert kept.list("") == ["a/b/one", "a/two"]
    assert kept.list("a/b") == kept.list("a/b/o") == ["a/b/one"]
    assert kept.list("b") == kept.list("none/x") == []
    kept.put("a/two", b"new")
    assert kept.get("a/two") == b"new"


def test_a_missing_path_is_an_error_to_read_and_none_to_delete(storage):
    for read in (lambda: storage.get("none"), lambda: storage.get_range("none", 0, 1)):
        with pytest.raises(FileNotFoundError):
            read()
    storage.delete("none/none")


def test_deleting_takes_emptied_folders_along_but_never_the_root(storage):
    storage.put("a/b/one", b"1")
    storage.put("a/two", b"2")
    storage.delete("a/b/one")
    assert [path.name for path in (storage.root / "a").iterdir()] == ["two"]
    storage.delete("a/two")
    assert storage.root.is_dir()
    assert not list(storage.root.iterdir())


def test_one_of_many_callers_creates_a_file(storage):
    def claims(caller):
        own = LocalStorage(storage.root)
        return [own.put_if_absent(f"claims/{n}", str(caller).encode()) for n in range(20)]

    with ThreadPoolExecutor(8) as callers:
        won = list(callers.map(claims, range(8)))
    for n, answers in enumerate(zip(*won, strict=True)):
        assert sum(answers) == 1
        assert storage.get(f"claims/{n}") == str(answers.index(True)).encode()


def test_one_of_several_processes_creates_a_file(storage):
    pids = []
    start, begin = os.pipe()
    for caller in range(4):
        pid = os.fork()
        if pid == 0:
            os.close(begin)
            os.read(start, 1)  # until all are there
            os._exit(storage.put_if_absent("claim", str(caller).encode()))
        pids.append(pid)
    os.close(begin)
    os.close(start)
    won = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sorted(won) == [0, 0, 0, 1]
    assert storage.get("claim") == str(won.index(1)).encode()


def test_unfinished_files_are_not_listed_and_are_swept_once_nobody_writes_them(storage):
    storage.put("step/one", b"1")
    old = leftover(storage, f"step/{UNFINISHED}", age_s=ABANDONED_S + 5)
    alone = leftover(storage, f"other/{UNFINISHED}", age_s=ABANDONED_S + 5)
    young = leftover(storage, f"step/{TEMPORARY}{1:016x}", age_s=1)
    assert storage.list("") == ["step/one"]
    storage.sweep(["", "step", "other", "none"])
    assert not old.exists()
    assert not alone.parent.exists()
    assert young.exists()
    assert storage.list("") == ["step/one"]


def test_a_disk_that_fills_up_in_the_middle_of_a_file_leaves_the_old_one(storage):
    """A limit on the size of files in a child process stands for the full disk."""
    storage.put("one", b"old")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            storage.put("one", b"x" * 100_000)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EFBIG
    assert storage.get("one") == b"old"
    assert [path.name for path in storage.root.iterdir()] == ["one"]


def test_a_path_through_a_file_is_an_error_and_not_an_empty_folder(storage):
    storage.put("one", b"1")
    with pytest.raises(FileExistsError):
        storage.put("one/two", b"2")
    with pytest.raises(NotADirectoryError):
        storage.list("one/")
