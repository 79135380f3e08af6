"""The journal in the run's storage: pieces of its files beside the checkpoints of a bucket.

Where the checkpoints lie elsewhere than in the run's folder, the folder can be gone while they are
there, with the machine that had it. So every few seconds, and before each commit, what is new goes
there as an object that is never replaced, named by the start, the controller and the bytes that it
holds. A start on another machine brings the files back, and says from when on nothing is proven.

Small pieces become one when there are many of them, so that a long run has few.
"""

import re
import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remesh.actors.history.journal_files import FOLDER, journal_path
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.state.storage import Storage
from remesh.parallel.threads import heard_thread

CARRY_S = 5.0
MANY = 16  # pieces of about one size become one
MOST_BYTES = 1 << 26

_NAME = re.compile(r"journal/start-(\d+)/(\d{6,18})\.(\d{12,18})-(\d{12,18})\.jsonl", re.ASCII)


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes `first` to `end` of the file with this number, which belongs to a start."""

    start: int
    number: int
    first: int
    end: int

    @property
    def path(self) -> str:
        name = f"{self.number:06d}.{self.first:012d}-{self.end:012d}.jsonl"
        return f"{FOLDER}/start-{self.start}/{name}"


class Segments:
    """Carries what a journal's writer has written to a storage."""

    def __init__(self, storage: Storage, writer: JournalWriter) -> None:
        self._storage = storage
        self._writer = writer
        self._carrying = threading.Lock()
        self._done: list[tuple[FilePiece, int]] = []
        self._ends = threading.Event()
        self._thread = heard_thread(self._run, name="segments")

    def start(self) -> None:
        self._thread.start()

    def finish(self, limit_s: float) -> None:
        """The last lines go too, if the storage answers within this time."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def carry(self) -> None:
        """All that is written so far is there. Raises: OSError."""
        with self._carrying:
            at = self._done[-1][0].end if self._done else 0
            while data := self._writer.bytes_from(at, MOST_BYTES):
                self._put(at, data, 0)
                at += len(data)
                self._merge()

    def _run(self) -> None:
        while not self._ends.wait(CARRY_S):
            with suppress(OSError):  # the next commit says so
                self.carry()
        with suppress(OSError):
            self.carry()

    def _put(self, first: int, data: bytes, level: int) -> None:
        writer = self._writer
        piece = FilePiece(writer.start, writer.incarnation, first, first + len(data))
        self._storage.put_if_absent(piece.path, data)
        self._done.append((piece, level))

    def _merge(self) -> None:
        """The new piece is there before the old ones go: a reader finds all bytes at any time."""
        while len(last := self._done[-MANY:]) == MANY and len({level for _, level in last}) == 1:
            (first, level), end = last[0], last[-1][0].end
            if end - first.first > MOST_BYTES:
                return
            data = self._writer.bytes_from(first.first, end - first.first)
            del self._done[-MANY:]
            self._put(first.first, data, level + 1)
            for piece, _ in last:
                with suppress(OSError):
                    self._storage.delete(piece.path)


def bring_back(storage: Storage, run_folder: Path) -> list[Path]:
    """Makes the files of the journal whole from the pieces in the storage, where they tell more.

    The files that were made anew, oldest first. Cost: one list; each piece of such a file is read
    once. Raises: OSError.
    """
    found: dict[int, list[FilePiece]] = defaultdict(list)
    for key in storage.list(f"{FOLDER}/start-"):
        if name := _NAME.fullmatch(key):
            piece = FilePiece(*map(int, name.groups()))
            found[piece.number].append(piece)
    made = []
    for number, pieces in sorted(found.items()):
        path, chosen = journal_path(run_folder, number), _covering(pieces)
        size = path.stat().st_size if path.is_file() else 0
        if chosen and chosen[-1].end > size:
            data = b"".join(_bytes(storage, chosen))
            LocalStorage(run_folder).put(f"{FOLDER}/{path.name}", data)
            made.append(path)
    return made


def _covering(pieces: Iterable[FilePiece]) -> list[FilePiece]:
    """Those that tell a file from its beginning on without a gap, as few as possible."""
    chosen: list[FilePiece] = []
    at, best = 0, None
    for piece in sorted(pieces, key=lambda piece: piece.first):
        if piece.first > at and best is not None and best.end > at:
            chosen.append(best)
            at = best.end
        if piece.first > at:
            return chosen
        if best is None or piece.end > best.end:
            best = piece
    if best is not None and best.end > at:
        chosen.append(best)
    return chosen


def _bytes(storage: Storage, pieces: Iterable[FilePiece]) -> Iterable[bytes]:
    at = 0
    for piece in pieces:
        yield storage.get(piece.path)[at - piece.first :]
        at = piece.end
