"""How a process shows a restarted controller that it lives: by a call that stays pending."""

import threading

LIFE = "life"  # the concurrency group of such calls
LIFE_THREADS = 2  # a new call may have to free the one before it


class Life:
    """A pending `outlive` fails with the process, which is the fastest news of its death."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()

    def outlive(self) -> None:
        """Returns when it is called again: by a newer controller, for the one before is dead."""
        over = threading.Event()
        with self._lock:
            before, self._over = self._over, over
        before.set()
        over.wait()
