"""A rank's part of a checkpoint: copied at the step boundary, written while training goes on."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from torch import Tensor

from remesh.orchestrator.control.words.events import Event, FilesSaved, SaveFailed
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile, shard_file_name
from remesh.parallel.state.shard_buffer import ShardBuffer
from remesh.parallel.state.storage import Storage


class Saver:
    """Writes in the order of the calls, one file at a time."""

    def __init__(
        self, *, worker: str, start: int, storage: Storage, post: Callable[[Event], None]
    ) -> None:
        self._worker = worker
        self._start = start
        self._storage = storage
        self._post = post
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        self._writing: Future[None] | None = None
        self._buffer: ShardBuffer | None = None
        self._memory = bytearray()
        self._file_name = ""

    @property
    def is_prepared(self) -> bool:
        return self._buffer is not None

    def prepare(
        self, part: Sequence[tuple[Fragment, Tensor]], *, rank: int, num_writers: int
    ) -> None:
        """From now on this rank's part of the state is saved, until it is released."""
        self._buffer, self._memory = ShardBuffer(part, self._memory), bytearray()
        self._file_name = shard_file_name(rank, num_writers)

    def release(self) -> None:
        """Hold no view of the state any more; what was copied of it is written all the same."""
        if self._buffer:
            self._memory = self._buffer.memory
        self._buffer = None

    def save(self, *, step: int, generation: int) -> None:
        """Copy this rank's part now, write it later; FilesSaved or SaveFailed follows.

        Cost: one copy of the part on the calling thread, into the memory of the save before. It
        waits for that one: storage that is slower than training slows it down and fills no memory.
        """
        assert self._buffer, "prepare comes first"
        self.wait()
        ref = CheckpointRef(step=step, generation=generation, start=self._start)
        self._buffer.copy(ref)
        path = f"{ref.name}/{self._file_name}"
        self._writing = self._thread.submit(self._write, ref, path, self._buffer)

    def wait(self) -> None:
        """Nothing is being written any more, and what was has been told."""
        if self._writing:
            wait([self._writing])

    def _write(self, ref: CheckpointRef, path: str, buffer: ShardBuffer) -> None:
        try:
            file = buffer.write(self._storage, path)
        except OSError as error:
            self._tell_failure(ref, error.strerror or str(error))
        except Exception as error:
            logging.getLogger(__name__).exception("a checkpoint could not be written")
            self._tell_failure(ref, f"{type(error).__name__}: {error}")
        else:
            self._tell(ref, file)

    def _tell(self, ref: CheckpointRef, file: ShardFile) -> None:
        self._post(
            FilesSaved(worker=self._worker, generation=ref.generation, step=ref.step, files=(file,))
        )

    def _tell_failure(self, ref: CheckpointRef, reason: str) -> None:
        self._post(
            SaveFailed(
                worker=self._worker,
                generation=ref.generation,
                step=ref.step,
                error=f"{ref.name} cannot be written: {reason}",
            )
        )
