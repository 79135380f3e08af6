"""A large file goes to the disk past the page cache, while its first bytes are found."""

import errno
import mmap
import os
import threading
from functools import partial

import numpy as np
import pytest
from waiting import PATIENCE_S

from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.headed_file import BLOCK_BYTES
from remesh.data.durable import Disk
from remesh.parallel.state.storage import Head

HEAD = b"what is known last"
BLOCKS = 5


class WatchedDisk(Disk):
    """Notes what is placed: (whether past the cache, first byte, bytes). It takes `at_once` bytes
    of a call, and refuses a way with `refusal`, at once or only where something is placed.
    """

    def __init__(self, *, refusal=None, late=False, at_once=None):
        self.refusal, self.late, self.at_once = refusal, late, at_once
        self.passing = False
        self.placed = []
        self.order = []

    def pass_by_cache(self, file, *, passing):
        assert not file.closed
        if passing and self.refusal and not self.late:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.passing = passing

    def place(self, file, data, at):
        if self.passing and self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.order.append("place")
        taken = super().place(file, data[: self.at_once], at)
        self.placed.append((self.passing, at, taken))
        return taken

    def sync(self, file):
        self.order.append("sync")
        super().sync(file)

    def sync_folder(self, folder):
        self.order.append("folder")
        super().sync_folder(folder)

    def link(self, source, target):
        self.order.append("link")
        super().link(source, target)


@pytest.fixture
def blob():
    """Five blocks and a bit, whose head has no bytes yet."""
    memory = mmap.mmap(-1, BLOCKS * BLOCK_BYTES + 100)
    memory[:] = bytes(range(256)) * (len(memory) // 256) + bytes(len(memory) % 256)
    return memory


def head_of(memory):
    def fill():
        memory[: len(HEAD)] = HEAD

    return Head(num_bytes=len(HEAD), fill=fill)


def put(root, disk, memory, head=None):
    assert LocalStorage(root, disk).put_if_absent("step/one", memory, head or head_of(memory))
    assert (root / "step" / "one").read_bytes() == memory[:]
    assert memory[: len(HEAD)] == HEAD


def test_whole_blocks_pass_the_cache_by_and_the_head_comes_last(tmp_path, blob):
    disk = WatchedDisk()
    put(tmp_path, disk, blob)
    last = BLOCKS * BLOCK_BYTES
    assert disk.placed == [
        (True, BLOCK_BYTES, last - BLOCK_BYTES),
        (False, last, 100),
        (False, 0, BLOCK_BYTES),
    ]
    assert disk.order == ["place"] * 3 + ["sync", "link", "folder", "folder"]


def test_the_head_is_found_while_the_rest_is_written(tmp_path, blob):
    writing, filling = threading.Event(), threading.Event()

    class Meeting(WatchedDisk):
        def place(self, file, data, at):
            writing.set()
            assert filling.wait(PATIENCE_S)
            return super().place(file, data, at)

    def fill():
        filling.set()
        assert writing.wait(PATIENCE_S)
        blob[: len(HEAD)] = HEAD

    put(tmp_path, Meeting(), blob, Head(num_bytes=len(HEAD), fill=fill))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_knows_no_such_way_gets_all_through_the_cache(
    tmp_path, blob, refusal, late
):
    disk = WatchedDisk(refusal=refusal, late=late)
    put(tmp_path, disk, blob)
    assert [passing for passing, _, _ in disk.placed] == [False] * 3


def test_memory_that_does_not_lie_as_blocks_do_goes_through_the_cache(tmp_path, blob):
    disk = WatchedDisk()
    moved = memoryview(bytearray(len(blob) + BLOCK_BYTES))
    start = next(n for n in range(2) if address_of(moved[n:]) % BLOCK_BYTES)
    moved = moved[start : start + len(blob)]
    moved[:] = blob
    put(tmp_path, disk, moved, head_of(moved))
    assert not any(passing for passing, _, _ in disk.placed)


def address_of(view):
    return np.frombuffer(view, np.uint8).ctypes.data


def test_a_disk_that_takes_less_than_asked_for_is_asked_again(tmp_path, blob):
    disk = WatchedDisk(at_once=BLOCK_BYTES)
    put(tmp_path, disk, blob)
    assert len(disk.placed) == BLOCKS + 1


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_head_of_any_length_stands_where_it_belongs(tmp_path, blocks):
    for length in (1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1):
        memory = mmap.mmap(-1, length + blocks * BLOCK_BYTES)
        memory[length:] = b"x" * (len(memory) - length)
        fill = partial(memory.__setitem__, slice(length), b"h" * length)
        head = Head(num_bytes=length, fill=fill)
        storage = LocalStorage(tmp_path, WatchedDisk())
        assert storage.put_if_absent(f"{blocks}-{length}", memory, head)
        assert storage.get(f"{blocks}-{length}") == b"h" * length + memory[length:]


def test_a_disk_that_fills_up_in_the_middle_leaves_no_file_and_its_error(tmp_path, blob):
    disk = WatchedDisk(refusal=errno.ENOSPC, late=True)
    with pytest.raises(OSError, match="No space left"):
        LocalStorage(tmp_path, disk).put_if_absent("one", blob, head_of(blob))
    assert not list(tmp_path.iterdir())


def test_a_head_that_cannot_be_found_leaves_no_file(tmp_path, blob):
    def fill():
        raise RuntimeError("no hash")

    with pytest.raises(RuntimeError, match="no hash"):
        LocalStorage(tmp_path).put_if_absent("one", blob, Head(num_bytes=1, fill=fill))
    assert not list(tmp_path.iterdir())


def test_on_a_real_disk_too(tmp_path, blob):
    storage = LocalStorage(tmp_path)
    assert storage.put_if_absent("one", blob, head_of(blob))
    assert storage.get("one") == blob[:]
    assert not storage.put_if_absent("one", blob, head_of(blob))
