"""A line to a vault while it is being opened: who trains does not wait for the vault's proof."""

import threading

from remesh.actors.vault.messages import Message
from remesh.actors.vault.wire import Line
from remesh.parallel.threads import heard_thread


class LineOpening:
    """Opens a line and says the first message, in a thread of its own that ends with that."""

    def __init__(self, address: str, token: str, limit_s: float, first: Message) -> None:
        self._address = address
        self._token = token
        self._limit_s = limit_s
        self._first = first
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._error: Exception | None = None
        self._left = False

    def start(self) -> None:
        heard_thread(self._open, name="vault line", failed=self._fail).start()

    def line(self) -> Line | None:
        """The line, once it is open. Raises: OSError once it cannot be, or a bug."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._line

    def leave(self) -> None:
        """Nobody wants the line any more, open or not."""
        with self._lock:
            self._left = True
            if self._line is not None:
                self._line.close()

    def _open(self) -> None:
        line = None
        try:
            line = Line.open(self._address, self._token, self._limit_s)
            line.send(self._first)
        except OSError as error:
            if line is not None:
                line.close()
            self._note(None, error)
        else:
            self._note(line, None)

    def _fail(self, error: Exception) -> None:
        self._note(None, error)

    def _note(self, line: Line | None, error: Exception | None) -> None:
        with self._lock:
            self._line, self._error = line, error
            if self._left and line is not None:
                line.close()
