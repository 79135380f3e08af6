"""Lines between the processes of one host, for few numbers that each says to all others.

Whoever speaks writes, and whoever waits is woken by that alone: a message through gloo wakes five
threads on its way. A process that ends ends its lines, and `end` frees who waits at one, so nobody
waits for what cannot come. The kernel says whose process is at the other end: nobody else gets in.

What lost: pipes, which cannot be shut from another thread; and a word in shared memory, which does
not tell that who was to write it is dead.
"""

import secrets
import socket
import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

LIMIT_S = 2.0  # until all are connected, who have all been there a moment ago
_LOOK_S = 0.05
MOST_NUMBERS = 1 << 12  # of one rank at once: what a line takes in though nobody reads
_ROOM_BYTES = 4 * 8 * MOST_NUMBERS  # two messages of that, each with as much of the kernel's own
_NETWORKS = Path("/proc/self/ns/net")
_NETWORK = struct.Struct("<Q")
_RANDOM_BYTES = 16
_RANK = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class ShortLines:
    """Of one rank to each other one of its group. `told` is for one thread, `end` for any."""

    def __init__(self, rank: int, lines: dict[int, socket.socket]) -> None:
        self._rank = rank
        self._lines = lines
        self._closing = threading.Lock()

    @staticmethod
    def form(
        gather: Callable[[bytes], Sequence[bytes]],
        rank: int,
        pids: Sequence[int],
        check: Callable[[], object] = lambda: None,
    ) -> "ShortLines | None":
        """None if any two cannot be connected. All ranks of the group call it, processes `pids`.

        `gather` gives what all ranks say, messages of one size, in the order of the ranks; `check`
        is called now and then by who waits for another one.
        Raises: what `gather` and `check` raise.
        """
        listener, own = _listener(len(pids))
        try:
            names = gather(own)
            if listener is None or not _can_meet(names):
                return None  # and so do all others
            lines = _connected(listener, names, rank, pids, check)
        finally:
            if listener is not None:
                listener.close()
        found = ShortLines(rank, lines or {})
        try:
            if all(answer == b"\1" for answer in gather(bytes([lines is not None]))):
                return found
        except BaseException:
            found.close()
            raise
        found.close()
        return None

    def told(self, numbers: Sequence[int]) -> list[list[int]]:
        """What each rank says, as many numbers, in the order of the ranks.

        Raises: OSError once a line has ended; its numbers are lost then.
        """
        assert len(numbers) <= MOST_NUMBERS, len(numbers)
        said = array("q", numbers).tobytes()
        for line in self._lines.values():
            line.sendall(said)
        rows = {self._rank: list(numbers)}
        for rank, line in self._lines.items():
            heard = _heard(line, len(said))
            if len(heard) < len(said):
                raise ConnectionError(f"rank {rank} has hung up")
            rows[rank] = array("q", heard).tolist()
        return [rows[rank] for rank in sorted(rows)]

    def end(self) -> None:
        """Frees who waits at a line, here and at the other ends. Repeatable."""
        with self._closing:  # or the number of a line could be another's by then
            for line in self._lines.values():
                with suppress(OSError):  # the other side was first
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Repeatable; not while another thread waits."""
        self.end()
        with self._closing:
            _close_all(self._lines)


def _heard(line: socket.socket, size: int) -> bytes:
    """So many bytes, fewer if the line has ended: a signal may cut short what is received."""
    data = piece = line.recv(size, socket.MSG_WAITALL)
    while piece and len(data) < size:
        piece = line.recv(size - len(data), socket.MSG_WAITALL)
        data += piece
    return data


def _listener(backlog: int) -> tuple[socket.socket | None, bytes]:
    """And the name by which it is found, which begins with where: all zeros for none."""
    try:
        name = _NETWORK.pack(_NETWORKS.stat().st_ino) + secrets.token_bytes(_RANDOM_BYTES)
        made = socket.socket(socket.AF_UNIX)
        made.bind(_place(name))
        made.listen(backlog)
        made.settimeout(_LOOK_S)
    except (OSError, AttributeError):  # there are no such sockets here, or no descriptors left
        return None, bytes(_NETWORK.size + _RANDOM_BYTES)
    return made, name


def _can_meet(names: Sequence[bytes]) -> bool:
    """Whether all have a name, of one network: containers of a host may each have their own, in
    which nobody finds another one, and those who wait for it would do so in vain.
    """
    networks = {name[: _NETWORK.size] for name in names}
    return len(networks) == 1 and any(networks.pop())


def _connected(
    listener: socket.socket,
    names: Sequence[bytes],
    rank: int,
    pids: Sequence[int],
    check: Callable[[], object],
) -> dict[int, socket.socket] | None:
    """To those before it a rank connects; those after it come in. Raises: what `check` raises."""
    lines: dict[int, socket.socket] = {}
    try:
        for other in range(rank):
            line = lines[other] = socket.socket(socket.AF_UNIX)
            line.settimeout(LIMIT_S)
            line.connect(_place(names[other]))
            _check(line, pids[other])
            line.sendall(_RANK.pack(rank))
        end_s = time.monotonic() + LIMIT_S
        while len(lines) < len(pids) - 1 and time.monotonic() < end_s:
            check()
            _let_in(listener, lines, rank, pids)
    except BaseException as error:
        _close_all(lines)
        if isinstance(error, OSError):
            return None
        raise
    if len(lines) < len(pids) - 1:
        _close_all(lines)
        return None
    for line in lines.values():
        line.settimeout(None)
    if not all(_is_roomy(line) for line in lines.values()):
        _close_all(lines)
        return None
    return lines


def _is_roomy(line: socket.socket) -> bool:
    """Whether it takes in all that is said at once before anybody reads: all write first, and then
    read. A system may give lines less room than that, unless it is asked for.
    """
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return line.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= _ROOM_BYTES


def _close_all(lines: dict[int, socket.socket]) -> None:
    for line in lines.values():
        line.close()


def _let_in(
    listener: socket.socket, lines: dict[int, socket.socket], rank: int, pids: Sequence[int]
) -> None:
    """The next one that comes within a moment, if it is a rank after this one. Raises: OSError."""
    try:
        line, _ = listener.accept()
    except TimeoutError:
        return
    line.settimeout(LIMIT_S)
    try:
        (other,) = _RANK.unpack(line.recv(_RANK.size, socket.MSG_WAITALL))
        _check(line, pids[other] if rank < other < len(pids) else 0)
    except (OSError, struct.error):
        line.close()  # a stranger
    else:
        lines[other] = line


def _place(name: bytes) -> bytes:
    """Of a name that no file system holds, and that goes with its socket."""
    return b"\0remesh-" + name.hex().encode()


def _check(line: socket.socket, pid: int) -> None:
    """Raises: ConnectionError unless this process is at the other end."""
    told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(told)[0] != pid:
        raise ConnectionError("another process is there")
