"""Whose process is not there any more, by the word of the kernel of its host.

A connection to the silent door of each agent is held. Where one breaks, a new one is tried: if that
is refused, the agent's process has ended, even if nobody is left there who could tell. It is tried
again as long as that is of use, and told each time: evidence is never old. Whatever else becomes of
a try proves nothing, since a host that is only cut off is as silent as a dead one: then beats have
to tell. What lost: Ray's word, which comes after seconds where its own process on the node died
too; and an agent that calls the controller, where nobody could ask whether it is really gone.
"""

import errno
import math
import queue
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from remesh.parallel.doors.addresses import parted, resolved
from remesh.parallel.doors.waker import Waker
from remesh.parallel.threads import heard_thread

AGAIN_S = 0.025  # a door that refuses is tried again so soon, and later by and by
SLOWER_S = 0.2
LATER_S = 2.0  # one that does not answer
MOST_DROPS = 8  # in a row, before it is no dying process but somebody else who answers
GIVEN_UP_TRIES = 5  # in a row for an answer, of a door at which nobody has come in yet
ESTABLISHED = (0, errno.EISCONN)


@dataclass(slots=True, eq=False)
class _Doorway:
    """`agent` tells the agents of a node from each other. `was_in`: a connection has stood, so the
    address is right. `broken_s` is when the newest one broke that had stood for a while, or else
    the first, by the wall clock; since then `drops` more were taken and broken at once.
    """

    node: str
    agent: int
    address: str
    line: socket.socket | None = None
    was_in: bool = False
    came_s: float = 0.0
    broken_s: float | None = None
    drops: int = 0
    tries: int = 0
    due_s: float = 0.0
    is_over: bool = False

    @property
    def waits(self) -> bool:
        """For its next try."""
        return self.line is None and not self.is_over


class Knocking:
    """`told` hears which node's door refuses, and since when; whether it is to be tried again.

    `see` is called by any thread, `turn` by one.
    """

    def __init__(self, told: Callable[[str, float], bool]) -> None:
        self._told = told
        self._seen: queue.SimpleQueue[_Doorway] = queue.SimpleQueue()
        self._newest: dict[str, tuple[int, str]] = {}
        self._visits: dict[str, _Doorway] = {}
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._waker.register(self._selector)

    def start(self) -> None:
        heard_thread(self._live, name="knocking").start()

    def see(self, node: str, agent: int, address: str) -> None:
        """The agent on this node has a door there. Cheap where that is known."""
        if address and self._newest.get(node) != (agent, address):
            self._newest[node] = (agent, address)
            self._seen.put(_Doorway(node=node, agent=agent, address=address))
            self._waker.wake()

    def turn(self, wait_s: float) -> None:
        """All that is due, after at most so long."""
        due_s = min((one.due_s for one in self._visits.values() if one.waits), default=math.inf)
        within_s = max(0.0, min(wait_s, due_s - time.monotonic()))
        for key, _ in self._selector.select(within_s):
            key.data()
        while not self._seen.empty():
            self._begin(self._seen.get())
        now_s = time.monotonic()
        for one in list(self._visits.values()):
            if one.waits and one.due_s <= now_s:
                self._try(one)

    def close(self) -> None:
        for one in self._visits.values():
            self._hang_up(one)
        self._selector.close()
        self._waker.close()

    def _live(self) -> None:
        while True:
            self.turn(LATER_S)

    def _begin(self, visit: _Doorway) -> None:
        before = self._visits.get(visit.node)
        if before is not None and before.agent > visit.agent:
            return
        if before is not None:
            self._hang_up(before)
        self._visits[visit.node] = visit

    def _try(self, one: _Doorway) -> None:
        one.tries += 1
        try:
            family, ip = resolved(parted(one.address)[0])
            one.line = socket.socket(family)
            one.line.setblocking(False)
            error = one.line.connect_ex((ip, parted(one.address)[1]))
        except (OSError, ValueError) as raised:
            self._missed(one, getattr(raised, "errno", None) or errno.EINVAL)
            return
        if error == errno.EINPROGRESS:
            wanted = selectors.EVENT_WRITE
            self._selector.register(one.line, wanted, partial(self._answered, one))
        elif error in ESTABLISHED:
            self._selector.register(one.line, selectors.EVENT_READ, partial(self._heard, one))
            self._came_in(one)
        else:
            self._missed(one, error)

    def _answered(self, one: _Doorway) -> None:
        assert one.line is not None
        error = one.line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._missed(one, error)
        else:
            self._selector.modify(one.line, selectors.EVENT_READ, partial(self._heard, one))
            self._came_in(one)

    def _came_in(self, one: _Doorway) -> None:
        one.was_in, one.tries, one.came_s = True, 0, time.monotonic()

    def _heard(self, one: _Doorway) -> None:
        """Nobody says anything here: it is the end of the connection."""
        assert one.line is not None
        try:
            if one.line.recv(1 << 10):
                return
        except BlockingIOError:
            return
        except OSError:  # reset
            pass
        self._hang_up(one)
        now_s = time.monotonic()
        one.tries = 0
        has_stood = now_s - one.came_s > AGAIN_S
        if has_stood or one.broken_s is None:
            one.broken_s = time.time()
        one.drops = 0 if has_stood else one.drops + 1
        # One that ends may still take a connection with its last breath; a proxy takes them all.
        one.due_s = now_s + (AGAIN_S if one.drops < MOST_DROPS else LATER_S)

    def _missed(self, one: _Doorway, error: int) -> None:
        self._hang_up(one)
        refused = error == errno.ECONNREFUSED and one.was_in
        if refused:
            assert one.broken_s is not None
            one.is_over = not self._told(one.node, one.broken_s)
            again_s = AGAIN_S if one.tries * AGAIN_S < SLOWER_S else SLOWER_S
        else:
            one.is_over = not one.was_in and one.tries >= GIVEN_UP_TRIES
            again_s = LATER_S
        one.due_s = time.monotonic() + again_s

    def _hang_up(self, one: _Doorway) -> None:
        if one.line is not None:
            with suppress(KeyError, ValueError):  # it was never waited for
                self._selector.unregister(one.line)
            one.line.close()
            one.line = None
