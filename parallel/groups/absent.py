"""Whom a rank waits for in vain while a group forms: the ones that have not come, or do not answer.

Once it has failed it knocks at where the others listen. The kernel answers for a process that is
busy, frozen or has just left, so what does not answer at all is cut off by the network. A refusal
says nothing: whoever left first, for the same reason, refuses too.
"""

import errno
import selectors
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from remesh.parallel.groups.sockets import Address

MOST_ASKED = 256  # of thousands: each rank asks those that follow it, so that all are asked
MOST_NAMED = 8
_KNOCK_S = 0.3


@dataclass(slots=True, kw_only=True)
class Attendance:
    """The ranks of a group that is to form, as one of them sees it. `there` is who has come."""

    rank: int
    size: int
    there: dict[int, Address] = field(default_factory=dict)

    @property
    def others(self) -> Iterable[int]:
        """Those that follow this rank first."""
        return ((self.rank + further) % self.size for further in range(1, self.size))

    def waited_for(self) -> tuple[int, ...]:
        """Some of those that keep it from forming. Cost: a moment's wait if all have come."""
        missing = [rank for rank in self.others if rank not in self.there]
        asked = [rank for rank in self.others if rank in self.there][:MOST_ASKED]
        named = missing or unanswered({rank: self.there[rank] for rank in asked})
        return tuple(named[:MOST_NAMED])


def unanswered(addresses: Mapping[int, Address], within_s: float = _KNOCK_S) -> list[int]:
    """At which of these nobody answers in time, neither yes nor no."""
    waiting: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        try:
            for rank, address in addresses.items():
                waiting[rank] = _knock(address)
                selector.register(waiting[rank], selectors.EVENT_WRITE, rank)
            until_s = time.monotonic() + within_s
            silent = dict.fromkeys(waiting)
            while silent and (left_s := until_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    selector.unregister(key.fileobj)
                    if not _is_cut_off(waiting[key.data]):
                        del silent[key.data]
        finally:
            for connection in waiting.values():
                connection.close()
    return list(silent)


def _knock(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    with suppress(OSError):  # told by its option, as what comes later
        connection.connect(address)
    return connection


def _is_cut_off(connection: socket.socket) -> bool:
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return error not in (0, errno.ECONNREFUSED, errno.ECONNRESET)
