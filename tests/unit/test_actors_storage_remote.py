import errno
import itertools
import mmap
import threading

import pytest
from fsspec.implementations.local import LocalFileSystem
from waiting import PATIENCE_S, soon

from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.patience import Patience
from remesh.actors.storage.remote_storage import RemoteStorage
from remesh.actors.storage.storage_url import open_storage
from remesh.parallel.state.storage import Head

NAMES = itertools.count()
HASTY = Patience(num_tries=3, try_s=1, pause_s=0.001)


@pytest.fixture(params=["path", "file", "memory", "a driver that renames"])
def storage(request, tmp_path):
    match request.param:
        case "path":
            return open_storage(str(tmp_path / "run"))
        case "file":
            return open_storage(f"file://{tmp_path}/run")
        case "memory":
            return open_storage(f"memory://bucket/{next(NAMES)}")
    return RemoteStorage(LocalFileSystem(), f"{tmp_path}/run", "local://run")


def test_each_keeps_what_checkpoints_ask_of_a_storage(storage):
    storage.put("a/b/one", b"0123456789")
    storage.put("a/two", bytearray(b""))
    assert storage.get("a/b/one") == b"0123456789"
    assert storage.get_range("a/b/one", 3, 4) == b"3456"
    assert storage.get_range("a/b/one", 8, 100) == b"89"
    assert storage.get_range("a/b/one", 50, 2) == b""
    room = bytearray(9)
    assert storage.read_into("a/b/one", 2, [memoryview(room)[:3], memoryview(room)[3:]]) == 8
    assert room == b"23456789\0"
    assert storage.list("") == ["a/b/one", "a/two"]
    assert storage.list("a/b") == storage.list("a/b/o") == ["a/b/one"]
    assert storage.list("b") == storage.list("none/x") == []
    storage.put("a/two", memoryview(b"new"))
    assert storage.get("a/two") == b"new"
    storage.delete("a/two")
    storage.delete("none/none")
    assert storage.list("a") == ["a/b/one"]
    for read in (lambda: storage.get("none"), lambda: storage.get_range("none", 0, 1)):
        with pytest.raises(FileNotFoundError):
            read()


def test_each_creates_a_path_once(storage):
    assert storage.put_if_absent("a/claim", b"one")
    assert not storage.put_if_absent("a/claim", b"two")
    assert storage.get("a/claim") == b"one"
    assert storage.list("") == ["a/claim"]


def test_each_moves_what_it_keeps(storage):
    """user 1: over what a crash has left at the other path, too."""
    storage.put("a/one", b"1")
    storage.put("b/c/one", b"half")
    storage.move("a/one", "b/c/one")
    assert storage.list("") == ["b/c/one"]
    assert storage.get("b/c/one") == b"1"
    with pytest.raises(FileNotFoundError):
        storage.move("a/one", "b/c/one")
    assert storage.get("b/c/one") == b"1"


def test_a_path_and_a_file_url_are_the_local_storage(tmp_path):
    for url in (str(tmp_path), f"file://{tmp_path}", "runs/tiny", "C:runs"):
        assert isinstance(open_storage(url), LocalStorage)
    assert open_storage("file:///a%20b/c").root.as_posix() == "/a b/c"


class Flaky:
    """Fails in the given ways, one a call, then answers."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.limits_s = []

    def __call__(self, limit_s):
        self.limits_s.append(limit_s)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


def test_what_fails_is_asked_again_and_what_is_answered_is_not():
    flaky = Flaky(ConnectionResetError("cut"), ValueError("not XML"))
    assert HASTY.ask(flaky, what="get x") == "answer"
    assert len(flaky.limits_s) == 3
    for answer in (FileNotFoundError("x"), FileExistsError("x"), IsADirectoryError("x")):
        flaky = Flaky(answer)
        with pytest.raises(type(answer)):
            HASTY.ask(flaky, what="get x")
        assert len(flaky.limits_s) == 1


def test_patience_ends_with_what_was_seen_and_the_cure():
    with pytest.raises(OSError, match="get x failed 3 times, the last time with: c; check") as seen:
        HASTY.ask(Flaky(*map(OSError, "abcd")), what="get x")
    assert seen.value.errno == errno.EIO
    assert "get x failed" in seen.value.strerror
    with pytest.raises(PermissionError, match="get x is refused: no; check the credentials"):
        HASTY.ask(Flaky(PermissionError("no")), what="get x")


def test_more_bytes_may_take_longer():
    flaky = Flaky()
    Patience(try_s=2, bytes_per_s=1e6).ask(flaky, what="put x", num_bytes=3_000_000)
    assert flaky.limits_s == [5]


class Hung(LocalFileSystem):
    """Stands for a mount that does not answer until it is let go."""

    protocol = "hung"
    cachable = False

    def __init__(self):
        super().__init__()
        self.asked, self.let_go = 0, threading.Event()

    def cat_file(self, *_, **__):
        self.asked += 1
        assert self.let_go.wait(PATIENCE_S)


def test_a_driver_that_hangs_is_left_alone_after_the_deadline(tmp_path):
    patience = Patience(num_tries=2, try_s=0.05, pause_s=0.001)
    mount = Hung()
    hung = RemoteStorage(mount, str(tmp_path), "hung://x", patience)
    with pytest.raises(
        OSError, match=r"hung://x: get a failed 2 times, .*no answer within 0\.05 s"
    ):
        hung.get("a")
    assert soon(lambda: mount.asked == 2)
    mount.let_go.set()


class Cutting(LocalFileSystem):
    """Notes what it is handed, as a driver that cuts what is large itself or one that does not."""

    cachable = False

    def __init__(self, protocol):
        super().__init__()
        self.protocol = protocol
        self.handed = []

    def pipe_file(self, path, value, mode="overwrite", **_):
        assert path
        assert mode == "create"
        self.handed.append(value)


@pytest.mark.parametrize(("protocol", "is_copied"), [("s3", False), ("gs", False), ("az", True)])
def test_a_large_shard_is_copied_only_for_drivers_that_do_not_cut_it(protocol, is_copied):
    driver = Cutting(protocol)
    shard = mmap.mmap(-1, 1 << 27)  # of which no page is touched
    assert RemoteStorage(driver, "bucket", "url://bucket").put_if_absent("a", shard) is True
    (handed,) = driver.handed
    assert (handed is not shard) == is_copied
    assert type(handed) in (bytes, mmap.mmap)


def test_a_small_shard_is_handed_to_a_driver_as_plain_bytes():
    driver = Cutting("s3")
    filled = []
    head = Head(num_bytes=4, fill=lambda: filled.append(1))
    storage = RemoteStorage(driver, "bucket", "url://bucket")
    for shard in (mmap.mmap(-1, 4096), memoryview(b"head"), bytearray(b"head")):
        assert storage.put_if_absent("a", shard, head)
    assert {type(handed) for handed in driver.handed} == {bytes, bytearray}
    assert len(filled) == 3
