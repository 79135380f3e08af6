"""The one thread of an agent: it obeys orders, looks at its processes, and talks to the controller.

It waits for nothing but for all of them together. One call to the controller is under way at a
time: a beat, with all events that are not in the journal yet. Its answer renews the lease that is
passed on by the stamps. The next call follows at once if there is news, else with the next beat. A
beat without news is a letter where those are answered, which costs a tenth of a call.
"""

import queue
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from remesh.actors.agent.forker import Forker
from remesh.actors.agent.free_time import FreeTime
from remesh.actors.agent.household import Household
from remesh.actors.agent.outbox import Outbox
from remesh.actors.agent.places import Places
from remesh.actors.agent.signs import SignWatch
from remesh.actors.agent.words import (
    AskVault,
    DrainRanks,
    EndNode,
    EndRank,
    FenceRanks,
    FormRanks,
    MoveVaults,
    NodeAnswer,
    NodeOrder,
    NodeOrders,
    NodeWord,
    SaveRanks,
    StartRank,
    StartVault,
    answer_of,
    beat_bytes,
)
from remesh.actors.node.own_time import OwnTime
from remesh.actors.node.private_files import make_folder
from remesh.actors.node.seats import (
    DrainOrder,
    FenceOrder,
    MoveOrder,
    RankSeat,
    SaveOrder,
    TellOrder,
    VaultSeat,
)
from remesh.actors.node.stamps import Field, Stamps, folder_of, vault_folder_of
from remesh.actors.orders import RunSpec, joined
from remesh.parallel.doors.letters import LetterWriter
from remesh.parallel.doors.silent_door import SilentDoor
from remesh.parallel.doors.waker import Waker

Hear = Callable[[NodeWord], "Future[NodeAnswer]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where an agent stands. `agent` grows from one to the next on the same node."""

    node: str
    node_ip: str
    agent: int
    devices: tuple[int, ...] = ()


class NodeLoop:
    """`take` and `end` may be called by any thread, `run` by one, once."""

    def __init__(
        self, spec: RunSpec, place: NodePlace, incarnation: int, hear: Hear, forker: Forker
    ) -> None:
        self._spec = spec
        self._place = place
        self._hear = hear
        self._timers = spec.job.timers
        self._selector = selectors.DefaultSelector()
        self._orders: queue.SimpleQueue[NodeOrders] = queue.SimpleQueue()
        self._door = _door(place.node_ip)
        self._outbox = Outbox(place.node, place.agent, self._door.address if self._door else "")
        self._outbox.obeys(incarnation)
        self._letters = LetterWriter(place.node_ip, spec.vault_token, place.agent)
        self.household = Household(forker, Places(place.devices), self._selector, self._outbox.put)
        self._look_s = self._timers.silent_s / 5
        self._own = OwnTime(self._look_s)
        self._free = FreeTime()
        self._signs = SignWatch(self._timers)
        self._folders = (folder_of(spec.run, place.node), vault_folder_of(spec.run, place.node))
        self._waker = Waker()
        self._ended = False
        self._clearing = False
        self._said_empty = False
        self._still_s = self._told_still_s = 0.0
        self._pending: Future[NodeAnswer] | None = None
        self._asked_s = 0.0
        self._leased_s = 0.0
        self._speak_s = 0.0
        self._num_nodes = 1

    def take(self, orders: NodeOrders) -> int:
        """The newest controller that orders were heard of: older ones are not obeyed."""
        self._orders.put(orders)
        self._waker.wake()
        return max(orders.incarnation, self._outbox.incarnation)

    def end(self) -> None:
        self._ended = True
        self._waker.wake()

    def run(self) -> None:
        """Until it is ended, or the lease on the controller lapses."""
        for folder in self._folders:
            _end_strays(folder)
        self._waker.register(self._selector)
        if self._door is not None:
            self._selector.register(self._door, selectors.EVENT_READ, self._door.take)
        self._selector.register(self._letters, selectors.EVENT_READ, self._take_letter)
        self.household.start()
        looked_s = self._own.now_s()
        while not self._ended:
            for key, _ in self._selector.select(self._look_s):
                key.data()
            self._obey_all()
            now_s = self._own.now_s()
            if now_s - looked_s >= self._look_s:
                looked_s = now_s
                self._look(now_s)
            self._talk(now_s)
            if now_s - self._leased_s > self._timers.node_lease_s(self._num_nodes):
                return

    def close(self) -> None:
        """Every process ends, those that are stopped too."""
        self.household.close(self._timers.end_s)

    def _look(self, now_s: float) -> None:
        self._still_s += self._own.stood_still_s()
        self._find_stamps()
        self.household.look()
        news = self._signs.look(self.household.all, now_s, self._free.at(now_s))
        for event in news:
            self._outbox.put(event)

    def _find_stamps(self) -> None:
        """Of those that have begun meanwhile."""
        unstamped = [one for one in self.household.all if one.is_there and one.stamps is None]
        for folder in self._folders if unstamped else ():
            found = Stamps.open_all(folder, {})
            for one in unstamped:
                stamps = found.get(one.stamps_name)
                if stamps is not None and stamps[Field.PID] == one.pid:
                    one.stamps = stamps

    def _talk(self, now_s: float) -> None:
        if not self._outbox.incarnation:  # nobody has asked for it yet
            return
        if self._pending is not None and self._pending.done():
            self._take_answer(self._pending)
            self._pending = None
        is_empty = self._clearing and self.household.is_empty
        has_news = self._outbox.has_news or (is_empty and not self._said_empty)
        if self._pending is None and (has_news or now_s >= self._speak_s):
            word = self._outbox.word(empty=is_empty, stood_still_s=self._still_s)
            self._said_empty = is_empty
            self._asked_s, self._told_still_s = now_s, self._still_s
            self._speak_s = now_s + self._timers.beat_s(self._num_nodes)
            self._say(word, has_news=has_news)

    def _say(self, word: NodeWord, *, has_news: bool) -> None:
        """A beat that brings nothing is a letter, if the one before was answered; else a call."""
        if not has_news and not word.events and self._letters.write(beat_bytes(word)):
            return
        self._letters.forget()
        self._pending = self._hear(word)
        self._pending.add_done_callback(lambda _: self._waker.wake())

    def _take_letter(self) -> None:
        body = self._letters.answer()
        if body is not None:
            self._heed(answer_of(body))

    def _take_answer(self, pending: "Future[NodeAnswer]") -> None:
        """One that is lost changes nothing: the same is told again, with the next beat."""
        if pending.exception() is None:
            self._heed(pending.result())

    def _heed(self, answer: NodeAnswer) -> None:
        if not self._outbox.hear(answer):
            return
        self._still_s -= self._told_still_s  # it may have stood still since
        self._told_still_s = 0.0
        self._letters.is_told(answer.letters)
        self._num_nodes = max(1, answer.num_nodes)
        if answer.leased:
            # From the asking on: an answer may have been held up for as long as a partition.
            self._leased_s = self._asked_s
            self._renew()
        self._clearing = answer.clear
        if answer.clear:
            self.household.end_all()

    def _renew(self) -> None:
        now_ns = time.monotonic_ns()
        for one in self.household.all:
            if one.stamps is not None:
                one.stamps[Field.LEASE_NS] = now_ns

    def _obey_all(self) -> None:
        while not self._orders.empty():
            orders = self._orders.get()
            if self._outbox.takes(orders):
                for order in orders.orders:
                    self._obey(order)

    def _obey(self, order: NodeOrder) -> None:
        match order:
            case StartRank(worker=worker):
                self.household.start_rank(self._rank_seat(worker))
            case EndRank(worker=worker):
                self.household.end_rank(worker)
            case StartVault():
                self.household.start_vault(self._vault_seat())
            case EndNode():
                self.end()
            case AskVault(generation=generation):
                self.household.tell(self.household.vault(), TellOrder(generation=generation))
            case _:
                self._pass_on(order)

    def _pass_on(self, order: FormRanks | FenceRanks | DrainRanks | SaveRanks | MoveVaults) -> None:
        match order:
            case FormRanks():
                self._form(order)
            case FenceRanks(generation=generation):
                fence = FenceOrder(generation=generation, heard_step=order.heard_step)
                for one in self.household.ranks(order.workers):
                    one.parked_in = max(one.parked_in, generation)
                    self.household.tell(one, fence)
            case DrainRanks():
                drain = DrainOrder(
                    generation=order.generation, save=order.save, heard_step=order.heard_step
                )
                self.household.tell_ranks(order.workers, drain)
            case SaveRanks():
                save = SaveOrder(generation=order.generation, step=order.step)
                self.household.tell_ranks(order.workers, save)
            case MoveVaults(generation=generation):
                move = MoveOrder(generation=generation, vaults=order.vaults)
                for one in self.household.all:
                    if one.worker and one.generation == generation:
                        self.household.tell(one, move)
            case _:
                assert_never(order)

    def _form(self, order: FormRanks) -> None:
        for rank in order.ranks:
            for one in self.household.ranks((rank.worker,)):
                one.generation = max(one.generation, order.shared.generation)
                self.household.tell(one, joined(order.shared, rank))

    def _rank_seat(self, worker: str) -> RankSeat:
        return RankSeat(
            worker=worker,
            node=self._place.node,
            node_ip=self._place.node_ip,
            device=None,
            incarnation=self._outbox.incarnation,
        )

    def _vault_seat(self) -> VaultSeat:
        return VaultSeat(
            node=self._place.node,
            node_ip=self._place.node_ip,
            incarnation=self._outbox.incarnation,
        )


def _door(host: str) -> SilentDoor | None:
    """None where there is no port: then its beats alone tell of the agent."""
    try:
        return SilentDoor(host)
    except OSError:
        return None


def _end_strays(folder: Path) -> None:
    """Of an agent before: one that was stopped may be there still."""
    make_folder(folder)
    for stamps in Stamps.open_all(folder, {}).values():
        stamps.kill()
