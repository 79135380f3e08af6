"""A way to a server, on which each of the first long answers is cut in its midst."""

import socket
import threading
from contextlib import suppress


class Way:
    """An answer that goes beyond the next of the `limits`, in bytes, ends there, and uses it up."""

    def __init__(self, target, *, limits):
        host, _, port = target.partition(":")
        self.limits = list(limits)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(near, far), daemon=True).start()

    def _ask(self, near, far):
        with suppress(OSError):
            while data := near.recv(4096):
                far.sendall(data)
        _shut(far)

    def _answer(self, near, far):
        passed = 0
        with suppress(OSError):
            while data := far.recv(4096):
                limit = self._limit_within(passed + len(data))
                near.sendall(data if limit is None else data[: max(0, limit - passed)])
                if limit is not None:
                    break
                passed += len(data)
        _shut(near)
        _shut(far)

    def _limit_within(self, num_bytes):
        with self._lock:
            reached = self.limits and self.limits[0] < num_bytes
            return self.limits.pop(0) if reached else None


def _shut(end):
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
