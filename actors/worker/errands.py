"""Calls that may wait for long, as those to storage do, made so that a fence frees who waits.

A call that nobody waits for any more goes on by itself: what it works on must be its own.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from remesh.actors.orders import SlotOrder
from remesh.actors.vault.slot_reader import VaultReader, reading
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.state.storage import Blob, Head, Storage

T = TypeVar("T")


class Errands:
    """One after the other, by one thread: the next waits for one that was left behind.

    Cost: some 30 us a call.
    """

    def __init__(self, name: str, fence: GenerationFence) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._fence = fence
        self._newest: Future[Any] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether none is under way, left behind or not."""
        return self._newest is None or self._newest.done()

    def run(self, generation: int, call: Callable[[], T]) -> T:
        """Raises: Cancelled once the generation is over; what `call` raises."""
        outcome = self._thread.submit(call)
        self._newest = outcome
        try:
            self._fence.wait(generation, outcome)
        finally:
            outcome.cancel()
        return outcome.result()

    def run_last(self, generation: int, call: Callable[[], T]) -> T:
        """As `run`; there is no other after it, and nobody waits for the thread."""
        try:
            return self.run(generation, call)
        finally:
            self._thread.shutdown(wait=False)


class FencedStorage:
    """That of one generation: the first block after its fence ends who reads on.

    Raises: Cancelled, beside what the storage raises.
    """

    def __init__(self, storage: Storage, fence: GenerationFence, generation: int) -> None:
        self._kept = storage
        self._fence = fence
        self._generation = generation

    @property
    def _storage(self) -> Storage:
        self._fence.check(self._generation)
        return self._kept

    def get(self, path: str) -> bytes:
        return self._storage.get(path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._storage.get_range(path, offset, length)

    def read_into(self, path: str, offset: int, into: Sequence[memoryview]) -> int:
        return self._storage.read_into(path, offset, into)

    def put(self, path: str, data: Blob) -> None:
        self._storage.put(path, data)

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        return self._storage.put_if_absent(path, data, head)

    def list(self, prefix: str) -> list[str]:
        return self._storage.list(prefix)

    def delete(self, path: str) -> None:
        self._storage.delete(path)


@contextmanager
def fenced_slot(
    order: SlotOrder, fence: GenerationFence, generation: int, timers: Timers
) -> Iterator[VaultReader]:
    """The slot in its vault; once the fence goes up, who reads it hears that it is closed.

    Raises: OSError; Cancelled if the generation is over before it is open.
    """
    with ExitStack() as stack:
        slot = reading(order.address, order.token, order.slot, timers)
        opened = Errands("slot", fence).run_last(generation, partial(stack.enter_context, slot))
        key = fence.guard(generation, opened.end)
        try:
            yield opened
        finally:
            fence.release(key)
