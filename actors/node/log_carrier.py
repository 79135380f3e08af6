"""Carries the logs of a node's processes to the run's folder, a part every half second.

In a thread of its own: when the run's folder hangs, the logs wait and nobody else does. In the
run's folder a log keeps its newest 256 KiB at least and twice that at most, all logs together
`MOST_BYTES`; a process that writes nothing has no file there, so that 16,384 silent ranks cost
none. On the node a log is cut when it has grown over 1 MiB, and removed once its process is gone.
What a node has written in the half second before its power fails is lost.
"""

import fcntl
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from remesh.actors.node.own_log import LOG, STACKS
from remesh.actors.node.private_files import open_file, opened
from remesh.parallel.threads import heard_thread

FOLDER = "logs"
KEPT_BYTES = 1 << 18
CUT_BYTES = 1 << 20
MOST_BYTES = 1 << 28
LOG_NAME = re.compile(r"(worker-\d+|controller|(agent|vault)-[\w.:%-]+)\.log", re.ASCII)
_EVERY_S = 0.5
_PRUNE_EVERY = 60  # rounds
_BLOCK_BYTES = 1 << 12
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogCarrier:
    """From a private folder of the node to `run_folder`; one of all that `prunes` is enough."""

    def __init__(self, source: Path, run_folder: Path, *, prunes: bool = False) -> None:
        self._source = source
        self._target = run_folder / FOLDER
        self._prunes = prunes
        self._carried: dict[str, int] = {}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._told = ""
        self._thread = heard_thread(self._run, name="logs")

    def start(self) -> None:
        self._thread.start()

    def finish(self, limit_s: float) -> None:
        """Carry what there is, and end; a folder that hangs is left alone. Repeatable."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def carry(self) -> None:
        """One round. Raises: OSError."""
        with self._lock, opened(self._source) as own:
            for name in sorted(os.listdir(own)):  # noqa: PTH208 - of an open folder
                if LOG_NAME.fullmatch(name):
                    self._carry(own, name)

    def _run(self) -> None:
        rounds = 0
        while not self._ended.wait(_EVERY_S):
            self._round(prunes=self._prunes and rounds % _PRUNE_EVERY == 0)
            rounds += 1
        self._round(prunes=False)

    def _round(self, *, prunes: bool) -> None:
        """What fails is said in the process's own log, and tried again."""
        try:
            self.carry()
            if prunes:
                prune(self._target)
        except OSError as error:
            if str(error) != self._told:
                self._told = str(error)
                print(f"logs are not carried to {self._target}: {error}", flush=True)  # noqa: T201

    def _carry(self, own: int, name: str) -> None:
        file = open_file(self._source / name, os.O_RDWR, folder=own)
        try:
            is_over = _is_free(file)  # before it is read: then nothing comes after
            size = os.fstat(file).st_size
            done = min(self._carried.get(name, 0), size)
            if size > done:
                start = max(done, size - KEPT_BYTES)
                news = os.pread(file, size - start, start)
                _append(self._target, name, news, begins=name not in self._carried)
            self._carried[name] = size
            if is_over:
                self._forget(own, name)
            elif size > CUT_BYTES:  # what is written in this very moment is lost
                os.ftruncate(file, 0)
                self._carried[name] = 0
        finally:
            os.close(file)

    def _forget(self, own: int, name: str) -> None:
        del self._carried[name]
        for left in (name, name.removesuffix(LOG) + STACKS):
            with suppress(FileNotFoundError):
                os.unlink(left, dir_fd=own)


def _is_free(file: int) -> bool:
    """Whether no process writes to it any more."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _append(folder: Path, name: str, news: bytes, *, begins: bool) -> None:
    """Add to a log in the run's folder, which keeps its end. Several starts share one."""
    folder.mkdir(parents=True, exist_ok=True)
    if begins:
        moment = time.strftime("%Y-%m-%d %H:%M:%S %z")
        news = f"-- {name.removesuffix(LOG)}, {moment} --\n".encode() + news
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with logs_in(folder) as own, os.fdopen(os.open(name, flags, 0o666, dir_fd=own), "ab") as log:
        found = os.fstat(log.fileno())
        _check_plain(folder / name, found)
        if found.st_size + len(news) > 2 * KEPT_BYTES:
            start = max(0, found.st_size - KEPT_BYTES)
            news = (os.pread(log.fileno(), KEPT_BYTES, start) + news)[-KEPT_BYTES:]
            log.truncate(0)
        log.write(news)


@contextmanager
def logs_in(folder: Path) -> Iterator[int]:
    """The descriptor of a run's folder of logs. Raises: OSError, if it is a link too."""
    own = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield own
    finally:
        os.close(own)


def read_log(folder: Path, name: str) -> bytes:
    """A log in the run's folder, its end if somebody else has made it larger. Raises: OSError."""
    with logs_in(folder) as own:
        file = os.fdopen(os.open(name, _READ, dir_fd=own), "rb")
        with closing(file):
            found = os.fstat(file.fileno())
            _check_plain(folder / name, found)
            file.seek(max(0, found.st_size - 2 * KEPT_BYTES))
            return file.read(2 * KEPT_BYTES)


def prune(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove the logs that were written to longest ago, until the rest is small enough."""
    with suppress(FileNotFoundError), logs_in(folder) as own:
        names = filter(LOG_NAME.fullmatch, os.listdir(own))  # noqa: PTH208 - of an open folder
        logs = [(os.stat(name, dir_fd=own, follow_symlinks=False), name) for name in names]
        held_bytes = sum(max(found.st_size, _BLOCK_BYTES) for found, _ in logs)
        for found, name in sorted(logs, key=lambda log: log[0].st_mtime):
            if held_bytes <= most_bytes:
                return
            os.unlink(name, dir_fd=own)
            held_bytes -= max(found.st_size, _BLOCK_BYTES)


def _check_plain(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(f"{path} is no plain file; it is not used; remove it")
