"""The processes of a node: begun, addressed, ended, and their deaths told once they are certain.

A death is seen by the kernel's handle for the process, within milliseconds. How it ended is known
from whoever reaps it, a moment later, and its own last word has arrived by then: so WorkerLost
waits for both, but not for long. A place is dealt again only after that.
"""

import itertools
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from remesh.actors.agent.death_causes import OomKills, cause_of
from remesh.actors.agent.fork_words import Ended
from remesh.actors.agent.forker import Born, Forker, ForkNews, Unborn
from remesh.actors.agent.places import Places
from remesh.actors.agent.resident import Resident
from remesh.actors.node.link import link
from remesh.actors.node.seats import AnySeat, RankOrder, RankSeat, TellOrder, VaultSeat
from remesh.orchestrator.control.words.events import (
    Event,
    GroupBroken,
    VaultLost,
    WorkerLost,
    WorkerParked,
)

ENDED_LIMIT_S = 0.5  # for the word how a process ended, when it is dead already


class Household:
    """For one thread: that which waits at `selector`, whose keys hold what to call.

    `say` takes the events.
    """

    def __init__(
        self,
        forker: Forker,
        places: Places,
        selector: selectors.BaseSelector,
        say: Callable[[Event], None],
    ) -> None:
        self._forker = forker
        self._places = places
        self._selector = selector
        self._say = say
        self._numbers = itertools.count(1)
        self._residents: dict[int, Resident] = {}
        self._waiting: list[RankSeat] = []
        self._oom_kills = OomKills()
        self._line: socket.socket | None = None
        self._line_number = -1

    def start(self) -> None:
        self._forker.start()
        self._register_line()

    @property
    def all(self) -> tuple[Resident, ...]:
        """A copy, for other threads too."""
        return tuple(self._residents.values())

    @property
    def is_empty(self) -> bool:
        """Every process is dead, and the kernel says so."""
        return not self._residents and not self._waiting

    def rank(self, worker: str) -> Resident | None:
        return next((one for one in self.all if one.worker == worker), None)

    def ranks(self, workers: Iterable[str]) -> list[Resident]:
        """Those of these workers that are there."""
        return [one for worker in workers if (one := self.rank(worker))]

    def vault(self) -> Resident | None:
        return next((one for one in self.all if not one.worker), None)

    def start_rank(self, seat: RankSeat) -> None:
        """Unless it is there. It waits for a place while all are taken by some that are dying."""
        known = (waiting.worker for waiting in self._waiting)
        if self.rank(seat.worker) is None and seat.worker not in known:
            self._waiting.append(seat)
            self._seat_waiting()

    def start_vault(self, seat: VaultSeat) -> None:
        """Unless it is there."""
        if self.vault() is None:
            self._ask(seat)

    def end_rank(self, worker: str) -> None:
        """Kill it; of one that never was there the death is told at once."""
        if one := self.rank(worker):
            one.kill()
            return
        self._waiting = [waiting for waiting in self._waiting if waiting.worker != worker]
        self._say(WorkerLost(worker=worker, cause="there is no such process"))

    def end_all(self) -> None:
        for seat in self._waiting:
            self._say(WorkerLost(worker=seat.worker, cause="its node is cleared"))
        self._waiting.clear()
        for one in self.all:
            one.kill()

    def tell_ranks(self, workers: Iterable[str], order: RankOrder) -> None:
        for one in self.ranks(workers):
            self.tell(one, order)

    def tell(self, one: Resident | None, order: RankOrder | TellOrder) -> None:
        """What its process is too busy for is kept; what is gone hears nothing."""
        if one is not None and not one.line.is_over:
            one.line.send(order)
            self._listen_to(one)

    def look(self) -> None:
        """What nobody tells of by a descriptor: to be called now and then."""
        for news in self._forker.look():
            self._note(news)
        for one in self.all:
            if one.line.is_over:  # there is nothing that it could do any more
                one.kill()
            self._bury(one)

    def close(self, limit_s: float) -> None:
        """The warm process ends what is left."""
        for one in self.all:
            one.kill()
        self._forker.end(limit_s)

    def _seat_waiting(self) -> None:
        for seat in list(self._waiting):
            if self._places.deal(seat.worker):
                self._waiting.remove(seat)
                self._ask(replace(seat, device=self._places.device(seat.worker)))

    def _ask(self, seat: AnySeat) -> None:
        line, theirs = link()
        one = Resident(next(self._numbers), seat, line)
        self._residents[one.number] = one
        self._selector.register(line, selectors.EVENT_READ, partial(self._hear, one))
        if born := self._forker.ask(one.number, seat, theirs):
            self._note(born)

    def _hear_forker(self) -> None:
        found = self._forker.news(self._living)
        self._register_line()  # first: what was closed may be the number of what comes now
        for news in found:
            self._note(news)

    def _register_line(self) -> None:
        """The forker's line is another one once its warm process was replaced."""
        line = self._forker.line
        if line is self._line:
            return
        if self._line is not None:
            self._selector.unregister(self._line_number)
        self._line = line
        if line is not None:
            self._line_number = line.fileno()
            self._selector.register(line, selectors.EVENT_READ, self._hear_forker)

    def _living(self) -> Iterator[int]:
        return (one.descriptor for one in self.all if one.is_there)

    def _note(self, news: ForkNews) -> None:
        match news:
            case Born(number=number, pid=pid, descriptor=descriptor):
                self._born(self._residents[number], pid, descriptor)
            case Unborn(number=number):
                self._ask_again(self._residents[number])
            case Ended(pid=pid, code=code):
                for one in self.all:
                    if one.pid == pid and one.code is None:
                        one.code = code
                        self._bury(one)

    def _born(self, one: Resident, pid: int, descriptor: int) -> None:
        one.born(pid, descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, partial(self._died, one))
        if one.ends:
            one.kill()

    def _ask_again(self, one: Resident) -> None:
        """Over another line: a process at the end of the first one may be there all the same."""
        self._forget(one)
        if not one.ends:
            self._ask(one.seat)
        elif one.worker:
            self._lost(one, "its process was ended before it began")

    def _died(self, one: Resident) -> None:
        self._selector.unregister(one.descriptor)
        one.died_at_s, one.died_s = time.time(), time.monotonic()
        self._bury(one)

    def _bury(self, one: Resident) -> None:
        """Tell of its death, once all is known that will be."""
        if one.died_at_s is None:
            return
        self._hear(one)
        if one.code is None and time.monotonic() - one.died_s < ENDED_LIMIT_S:
            return
        out_of_memory = not one.ends and self._oom_kills.is_new(one.died_s)
        self._forget(one)
        if one.worker:
            self._lost(one, cause_of(one.code, out_of_memory=out_of_memory))
        else:
            self._say(VaultLost(node=one.seat.node))

    def _lost(self, one: Resident, cause: str) -> None:
        last = one.last_word
        self._say(
            WorkerLost(
                worker=one.worker,
                cause=last.cause if last else cause,
                died_at_s=one.died_at_s,
                traceback=last.traceback if last else "",
            )
        )
        self._places.free(one.worker)
        self._seat_waiting()

    def _forget(self, one: Resident) -> None:
        del self._residents[one.number]
        if not one.line.is_over:
            self._selector.unregister(one.line)
        one.close()

    def _hear(self, one: Resident) -> None:
        """What it says, which is passed on; and what it had not taken in yet."""
        if one.line.is_over:
            return
        one.line.flush()
        for event in one.line.received():
            match event:
                case WorkerLost():
                    one.last_word = event  # told once it is dead
                    continue
                case WorkerParked() | GroupBroken():
                    one.parked_in = max(one.parked_in, event.generation)
            self._say(event)
        if one.line.is_over:
            self._selector.unregister(one.line)
        else:
            self._listen_to(one)

    def _listen_to(self, one: Resident) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.line.waits else 0)
        self._selector.modify(one.line, wanted, partial(self._hear, one))
