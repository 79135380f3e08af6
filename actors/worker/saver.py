"""A rank's part of a checkpoint: copied at the step boundary, written while training goes on.

Also all that a parked worker holds: that is copied by the thread that writes it, since nothing
changes it until the next mesh is formed.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from mmap import mmap

from torch import Tensor

from remesh.orchestrator.worker.heard import FileLost, FileWritten
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.root_manifest import CheckpointRef, shard_file_name
from remesh.parallel.state.shard_buffer import ShardBuffer
from remesh.parallel.state.storage import Storage

SavedPart = Sequence[tuple[Fragment, Tensor]]


@dataclass(slots=True)
class _HeldSave:
    """The state may not change between its beginning and `copied`."""

    ref: CheckpointRef
    outcome: "Future[None]"
    copied: threading.Event


class Saver:
    """Writes in the order of the calls, one file at a time, in the names of this start of the run.

    `tell` hears from the thread that writes what became of each.
    """

    def __init__(
        self, *, start: int, storage: Storage, tell: Callable[[FileWritten | FileLost], None]
    ) -> None:
        self._start = start
        self._storage = storage
        self._tell = tell
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        self._preparing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparing")
        self._writing: Future[None] | None = None
        self._held: _HeldSave | None = None
        self._buffer: Future[ShardBuffer] | None = None
        self._memory: mmap | None = None
        self._file_name = ""

    @property
    def is_prepared(self) -> bool:
        return self._buffer is not None

    @property
    def is_ready(self) -> bool:
        """Whether a save has nothing to wait for but the one before."""
        return self._buffer is not None and self._buffer.done()

    def prepare(self, part: Callable[[], SavedPart], *, rank: int, num_writers: int) -> None:
        """From now on this rank's part of the state is saved, until it is released.

        What that is, where it will lie and the memory for it are found beside what is computed and
        written: the first save waits for that if it comes at once, and else for nothing.
        """
        memory, self._memory = self._memory, None
        self._buffer = self._preparing.submit(_prepared, part, memory)
        self._file_name = shard_file_name(rank, num_writers)

    def release(self) -> None:
        """Save nothing of the state any more; what was copied of it is written all the same."""
        buffer, self._buffer = self._buffer, None
        if buffer and not buffer.cancel() and buffer.done() and not buffer.exception():
            self._memory = buffer.result().memory

    def save(self, fence: GenerationFence, *, step: int, generation: int) -> None:
        """Copy this rank's part now, write it later; what became of it is told then.

        Cost: one copy of the part on the calling thread, into the memory of the save before. It
        waits for that one: storage that is slower than training slows it down and fills no memory.
        Raises: Cancelled, with nothing copied, if the generation is over before.
        """
        assert self._buffer, "prepare comes first"
        if self._writing:
            fence.wait(generation, self._writing)
        fence.wait(generation, self._buffer)
        buffer = self._buffer.result()
        ref = CheckpointRef(step=step, generation=generation, start=self._start)
        buffer.copy(ref)
        path = f"{ref.name}/{self._file_name}"
        self._writing = self._thread.submit(self._write, ref, path, buffer)

    def save_held(
        self, part: SavedPart, place: tuple[int, int], *, step: int, generation: int
    ) -> None:
        """Copy and write all of `part`, behind what is being written; `settle` comes before it
        changes. `place` is which of how many writers this is.

        Cost: memory for the part.
        """
        self.settle()
        ref = CheckpointRef(step=step, generation=generation, start=self._start)
        copied = threading.Event()
        outcome = self._thread.submit(self._write_held, ref, part, place, copied)
        self._held = _HeldSave(ref, outcome, copied)

    def settle(self) -> None:
        """From now on what is held may change: a copy under way is finished, another is given up.

        Cost: one copy of the part at most; it never waits for storage.
        """
        held, self._held = self._held, None
        if held is None:
            return
        if held.outcome.cancel():
            self._tell_loss(held.ref, "the run goes on before it was copied", all_held=True)
        else:
            held.copied.wait()

    def _write_held(
        self, ref: CheckpointRef, part: SavedPart, place: tuple[int, int], copied: threading.Event
    ) -> None:
        buffer = ShardBuffer(part)
        try:
            buffer.copy(ref)
        except (RuntimeError, MemoryError) as error:
            self._tell_loss(ref, f"it could not be copied: {error}", all_held=True)
            return
        finally:
            copied.set()
        self._write(ref, f"{ref.name}/{shard_file_name(*place)}", buffer, all_held=True)

    def _write(
        self, ref: CheckpointRef, path: str, buffer: ShardBuffer, *, all_held: bool = False
    ) -> None:
        try:
            file = buffer.write(self._storage, path)
        except OSError as error:
            self._tell_loss(ref, error.strerror or str(error), all_held=all_held)
        except Exception as error:
            logging.getLogger(__name__).exception("a checkpoint could not be written")
            self._tell_loss(ref, f"{type(error).__name__}: {error}", all_held=all_held)
        else:
            self._tell(
                FileWritten(
                    generation=ref.generation, step=ref.step, files=(file,), all_held=all_held
                )
            )

    def _tell_loss(self, ref: CheckpointRef, reason: str, *, all_held: bool) -> None:
        self._tell(
            FileLost(
                generation=ref.generation,
                step=ref.step,
                error=f"{ref.name} cannot be written: {reason}",
                all_held=all_held,
            )
        )


def _prepared(part: Callable[[], SavedPart], memory: mmap | None) -> ShardBuffer:
    buffer = ShardBuffer(part(), memory)
    buffer.prepare()
    return buffer
