"""How an agent gets processes: from a warm one, which is replaced when it dies.

Where there can be no warm one, because it dies as it begins or is never alone, each process is
started by itself: slower, the same otherwise, and said once in the agent's log.
"""

import logging
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from remesh.actors.agent.fork_words import (
    Crowded,
    Ended,
    Forked,
    ForkSeat,
    TakeCare,
    Warm,
    heard_word,
    say,
)
from remesh.actors.cluster.warm_start import Started, WarmProcess, start, warm
from remesh.actors.node.processes import look
from remesh.actors.node.seats import AnySeat

MOST_FAILURES = 3  # one after the other, before it could fork
_WAITING_FAILURES = 2  # then none is taken that waits already


@dataclass(frozen=True, slots=True, kw_only=True)
class Born:
    """A process is there. `descriptor` stands for it, and is the taker's to close."""

    number: int
    pid: int
    descriptor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unborn:
    """Nothing comes of that request: ask again."""

    number: int


ForkNews = Born | Unborn | Ended


class Forker:
    """For one thread. `line` is readable when there is news; it may be another one later.

    `spec` is the run's RunSpec, pickled. A warm process may be under way already: the `first`.
    """

    def __init__(
        self, spec: bytes, environment: Mapping[str, str], first: Started | None = None
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._first = first
        self._warm: WarmProcess | None = None
        self._line: socket.socket | None = None
        self._is_warm = False
        self._asked: set[int] = set()
        self._unsent: deque[tuple[ForkSeat | TakeCare, int]] = deque()
        self._failures = 0
        self._lone: dict[int, WarmProcess] = {}
        self._dying: list[WarmProcess] = []

    @property
    def warm_pid(self) -> int:
        """0 where each process is started by itself."""
        return self._warm.pid if self._warm else 0

    @property
    def line(self) -> socket.socket | None:
        return self._line

    def start(self, living: Iterable[int] = ()) -> None:
        """Begin to warm up; the processes that are there already end with the agent too."""
        # Those that wait here have left each other behind: what two fail of, the third does too.
        begin = warm if self._failures < _WAITING_FAILURES else start
        started, self._first = self._first or begin(self._spec, self._environment), None
        self._warm, self._line = started.process, started.line
        self._line.setblocking(False)
        for descriptor in living:
            self._unsent.append((TakeCare(), os.dup(descriptor)))

    def ask(self, number: int, seat: AnySeat, end: socket.socket) -> Born | None:
        """Have a process for this seat, now or as news. Closes `end`, which becomes its own."""
        if self._line is None:
            with end:
                return self._begin_alone(number, seat, end)
        self._asked.add(number)
        self._unsent.append((ForkSeat(number=number, seat=seat), end.detach()))
        self._send()
        return None

    def news(self, living: Callable[[], Iterable[int]]) -> list[ForkNews]:
        """What the warm process has said since. `living` is asked if another takes its place."""
        found: list[ForkNews] = []
        while self._line is not None:
            try:
                word, descriptors = heard_word(self._line)
            except BlockingIOError:
                break
            except OSError:
                word, descriptors = None, []
            match word:
                case Warm():
                    self._failures = 0
                    self._is_warm = True
                case Forked(number=number, pid=pid):
                    self._asked.discard(number)
                    found.append(Born(number=number, pid=pid, descriptor=descriptors[0]))
                case Ended():
                    found.append(word)
                case Crowded(threads=threads):
                    return found + self._replace(f"threads beside its own: {threads}", living)
                case _:
                    return found + self._replace("it is gone", living)
            self._send()
        return found

    def look(self) -> list[Ended]:
        """Those of the processes that were started by themselves which have ended.

        A warm process that was stopped is of no use: it is killed, which is news.
        """
        self._send()
        self._dying = [one for one in self._dying if one.poll() is None]
        if self._warm and (found := look(self._warm.pid)) and found.stopped:
            self._warm.kill()
        codes = {pid: lone.poll() for pid, lone in self._lone.items()}
        ended = [Ended(pid=pid, code=code) for pid, code in codes.items() if code is not None]
        for one in ended:
            del self._lone[one.pid]
        return ended

    def end(self, limit_s: float) -> None:
        """The warm process ends everything that is left, and itself; waited for up to the limit."""
        if self._line is not None:
            self._line.close()
        for lone in self._lone.values():
            lone.kill()
        if self._warm:
            with suppress(subprocess.TimeoutExpired):
                self._warm.wait(limit_s)

    def _send(self) -> None:
        """What it can take in: the kernel keeps few messages of this kind for a process."""
        while self._unsent and self._line is not None and self._is_warm:
            word, descriptor = self._unsent[0]
            try:
                say(self._line, word, descriptor)
            except OSError:  # it is busy, or gone, which is news
                return
            self._unsent.popleft()
            os.close(descriptor)

    def _replace(self, why: str, living: Callable[[], Iterable[int]]) -> list[ForkNews]:
        """Another warm process, or none any more; whatever was asked of it is to be asked again."""
        log = logging.getLogger(__name__)
        assert self._line
        assert self._warm
        self._line.close()
        self._line, self._is_warm = None, False
        while self._unsent:
            os.close(self._unsent.popleft()[1])
        self._warm.kill()
        self._dying.append(self._warm)
        self._warm = None
        self._failures += 1
        if self._failures < MOST_FAILURES:
            log.warning("the warm process is replaced: %s", why)
            self.start(living())
        else:
            log.warning("no process can be kept warm, so each is started by itself: %s", why)
        unborn: list[ForkNews] = [Unborn(number=number) for number in sorted(self._asked)]
        self._asked.clear()
        return unborn

    def _begin_alone(self, number: int, seat: AnySeat, end: socket.socket) -> Born:
        started = start(self._spec, self._environment, "alone")
        pid = started.process.pid
        with started.line as line:
            self._lone[pid] = started.process
            say(line, ForkSeat(number=number, seat=seat), end.fileno())
        return Born(number=number, pid=pid, descriptor=os.pidfd_open(pid))
