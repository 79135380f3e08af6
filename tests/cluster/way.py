"""A way to a server that is cut now and then, with all the connections that go along it."""

import socket
import threading
from contextlib import suppress


class Way:
    def __init__(self, target, *, cut_every_s):
        host, _, port = target.partition(":")
        self.cuts = 0
        self._target = (host, int(port))
        self._cut_every_s = cut_every_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = []
        self._closed = threading.Event()
        for loop in (self._accept, self._cut):
            threading.Thread(target=loop, daemon=True).start()

    def close(self):
        self._closed.set()
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._ends += (near, far)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=ends, daemon=True).start()

    def _cut(self):
        while not self._closed.wait(self._cut_every_s):
            self.cuts += 1
            while self._ends:
                with suppress(OSError):
                    self._ends.pop().shutdown(socket.SHUT_RDWR)


def _pump(source, sink):
    with suppress(OSError):
        while data := source.recv(4096):
            sink.sendall(data)
    sink.close()
