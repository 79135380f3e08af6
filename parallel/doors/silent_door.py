"""A port that shows that its process is there, and says nothing: whoever comes is only held.

The kernel ends what is held, and refuses what comes anew, as soon as the process is not there any
more, however it ended. So one who holds a connection learns of that in a moment, and can tell it
from a network that is silent. It proves nothing to anybody else, and takes nothing in.
"""

import socket
from collections import deque

from remesh.parallel.doors.addresses import joined, listen

MOST_HELD = 8  # whoever comes then takes the place of the oldest, who may come again


class SilentDoor:
    """For one thread, which calls `take` when the door is readable.

    Raises: OSError if there is no port on this host.
    """

    def __init__(self, host: str) -> None:
        self._listener = listen(host)
        self._listener.setblocking(False)
        self._held: deque[socket.socket] = deque()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return joined(*self._listener.getsockname()[:2])

    def fileno(self) -> int:
        return self._listener.fileno()

    def take(self) -> None:
        try:
            found, _ = self._listener.accept()
        except OSError:  # who has come is gone, or there is no descriptor for it
            return
        self._held.append(found)
        if len(self._held) > MOST_HELD:
            self._held.popleft().close()

    def close(self) -> None:
        self._listener.close()
        while self._held:
            self._held.pop().close()
