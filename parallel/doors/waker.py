"""Wakes a thread that waits for what is readable."""

import os
import selectors
from contextlib import suppress

_WAKES_AT_ONCE = 1 << 12


class Waker:
    """`wake` may be called by any thread, the rest by the one that selects.

    That one calls what it finds registered: here it puts the wakes away.
    """

    def __init__(self) -> None:
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._woken, selectors.EVENT_READ, self._put_away)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is about to wake up already
            os.write(self._wakes, b"\0")

    def close(self) -> None:
        os.close(self._woken)
        os.close(self._wakes)

    def _put_away(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._woken, _WAKES_AT_ONCE):
                pass
