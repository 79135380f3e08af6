"""A disk that stops at one of its calls, and that knows what a power cut would leave of it."""

import random
from dataclasses import dataclass, field
from pathlib import Path

from remesh.data.durable import Disk


class Crash(BaseException):
    """Stands for the end of the process: nothing that it would still do is done."""


@dataclass(eq=False)
class Inode:
    """A file: what is in it, and how much of that is on the disk for certain. A folder has None."""

    data: bytes | None = b""
    safe: bytes = b""


@dataclass
class RecordedDisk:
    """Really changes the files, but syncs none: it only notes what has been synced.

    Before its call number `crash_at` it raises; a write stops half-way then.
    """

    root: Path
    crash_at: int | None = None
    num_calls: int = 0
    names: dict = field(default_factory=dict)
    safe_names: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)

    def _step(self, name):
        self.num_calls += 1
        self.calls.append(name)
        if self.crash_at is not None and self.num_calls >= self.crash_at:
            raise Crash(name)

    def revive(self):
        """A process that comes after the one that died."""
        self.crash_at = None

    def create(self, path, mode):
        self._step("create")
        self.names[path] = Inode()
        return RecordedFile(self, self.names[path], Disk().create(path, mode))

    def place(self, file, data, at):
        file.write(data, at)
        return len(data)

    def pass_by_cache(self, file, *, passing):
        pass

    def sync(self, file):
        self._step("sync")
        file.raw.flush()
        file.inode.safe = file.inode.data

    def replace(self, source, target):
        self._step("replace")
        Disk().replace(source, target)
        self.names[target] = self.names.pop(source)

    def link(self, source, target):
        self._step("link")
        Disk().link(source, target)
        self.names[target] = self.names[source]

    def unlink(self, path):
        self._step("unlink")
        Disk().unlink(path)
        self.names.pop(path, None)

    def make_folder(self, folder):
        self._step("make_folder")
        Disk().make_folder(folder)
        self.names[folder] = Inode(data=None)

    def remove_folder(self, folder):
        self._step("remove_folder")
        Disk().remove_folder(folder)
        self.names.pop(folder)

    def sync_folder(self, folder):
        self._step("sync_folder")
        for path in {path for path in self.names | self.safe_names if path.parent == folder}:
            if path in self.names:
                self.safe_names[path] = self.names[path]
            else:
                self.safe_names.pop(path)

    def after_a_power_cut(self, target, lasts):
        """Makes `target` what the disk may hold afterwards.

        A name that was not synced is there or not as `lasts()` says, for each of them; of a file's
        bytes only the synced ones are there.
        """
        left = dict(self.safe_names)
        for path in self.names.keys() | self.safe_names.keys():
            if self.names.get(path) is not self.safe_names.get(path) and lasts():
                left.pop(path, None)
                if path in self.names:
                    left[path] = self.names[path]
        target.mkdir()
        for path in sorted(left):
            moved = target / path.relative_to(self.root)
            if not moved.parent.is_dir():
                continue
            if left[path].data is None:
                moved.mkdir()
            else:
                moved.write_bytes(left[path].safe)


@dataclass
class RecordedFile:
    disk: RecordedDisk
    inode: Inode
    raw: object

    def writelines(self, pieces):
        for data in pieces:
            self.write(data, len(self.inode.data))

    def write(self, data, at):
        try:
            self.disk._step("write")
        except Crash:
            self._put(bytes(data[: len(data) // 2]), at)
            raise
        self._put(bytes(data), at)

    def _put(self, data, at):
        before = self.inode.data.ljust(at, b"\0")
        self.inode.data = before[:at] + data + before[at + len(data) :]
        self.raw.seek(at)
        self.raw.write(data)
        self.raw.flush()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.raw.close()


class HastyDisk(Disk):
    """Syncs nothing, for tests that have a disk to themselves and no power cut."""

    def sync(self, file):
        file.flush()

    def sync_folder(self, folder):
        pass


def cuts(seed):
    """Ways in which a power cut treats what was not synced: all is gone, all is there, by lot."""
    draw = random.Random(seed)
    return {
        "gone": lambda: False,
        "there": lambda: True,
        "by lot": lambda: draw.random() < 0.5,
    }
