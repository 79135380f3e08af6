"""Memory whose pages are there before anybody knows what for: a worker that waits has the time.

A page is made when it is first written to, which for a state takes longer than to receive it. So a
spare lays out as much as it will most likely hold, and the state of its first mesh lies in that as
far as it goes. What is laid out in vain goes back to the system; what lost: to make the state
itself, of which nobody knows the cut before there is a mesh.
"""

import mmap
from collections.abc import Callable
from contextlib import suppress

from remesh.parallel.pages.large_pages import untouched

_MADV_POPULATE_WRITE = 23  # of Linux 5.14; Python has no name for it
_PIECE_BYTES = 2 << 20  # a large page: whoever is called waits for one piece at the most
_ASKED_BYTES = 16 * _PIECE_BYTES  # so many are made before it is asked again whether they may be
_PAGE_BYTES = 4096


class StateRoom:
    """Zeros for one state, laid out from the front by `lay_out` and given from the front by `take`.

    One thread lays out, another one may stop it and takes.
    """

    def __init__(self, size_bytes: int) -> None:
        self._memory: mmap.mmap | None = untouched(max(size_bytes, _PAGE_BYTES))
        self._size_bytes = size_bytes
        self._laid_bytes = 0
        self._taken_bytes = 0
        self._stopped = False

    def lay_out(self, may: Callable[[int, int], bool] = lambda _left, _size: True) -> None:
        """Returns once all pages are there, or soon after `stop`, or where a kernel cannot, or may
        not: asked now and then with the bytes that are left of how many.
        """
        with suppress(OSError):
            while not self._stopped and self._laid_bytes < self._size_bytes:
                end = min(self._laid_bytes + _PIECE_BYTES, self._size_bytes)
                memory = self._memory
                if memory is None or not self._may_go_on(may):
                    return
                memory.madvise(_MADV_POPULATE_WRITE, self._laid_bytes, end - self._laid_bytes)
                self._laid_bytes = end

    def stop(self) -> None:
        """No more is laid out, but for the piece that is under way. Repeatable."""
        self._stopped = True

    def take(self, size_bytes: int) -> memoryview | None:
        """So many zeros that begin with a page, None if no more of them are there."""
        start = self._taken_bytes
        if self._memory is None or start + size_bytes > self._laid_bytes:
            return None
        self._taken_bytes = start + -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return memoryview(self._memory)[start : start + size_bytes]

    def close(self) -> None:
        """What was not taken goes back to the system. Repeatable."""
        self.stop()
        memory, self._memory = self._memory, None
        if memory is not None and self._taken_bytes < len(memory):
            memory.madvise(mmap.MADV_DONTNEED, self._taken_bytes)

    def _may_go_on(self, may: Callable[[int, int], bool]) -> bool:
        asks = self._laid_bytes % _ASKED_BYTES == 0
        return not asks or may(self._size_bytes - self._laid_bytes, self._size_bytes)
