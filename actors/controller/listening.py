"""What agents say to a controller, judged: whose word counts, and what its node is answered."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from remesh.actors.agent.words import NodeAnswer, NodeWord
from remesh.actors.controller.inbox import Inbox
from remesh.actors.links.heard_words import HeardWords, without_known
from remesh.actors.links.links import Links
from remesh.actors.links.watch import Watch, Word
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.events import Event

GONE = Word(num_nodes=1, leased=False, clear=True)


class Listening:
    """For the controller of this `incarnation`; `give_way` hears that there is a newer one.

    `hear` is called by several threads, of each agent once at a time.
    """

    def __init__(
        self,
        incarnation: int,
        machine: Controller,
        inbox: Inbox,
        watch: Watch,
        links: Links,
        give_way: Callable[[int], object],
    ) -> None:
        self._incarnation = incarnation
        self._machine = machine
        self._inbox = inbox
        self._watch = watch
        self._links = links
        self._give_way = give_way
        self._heard = HeardWords(self._take)
        self._has_begun = threading.Event()

    def begin(self) -> None:
        """Who is there is known from now on: those who have said something before have waited."""
        self._has_begun.set()

    def hear(self, word: NodeWord) -> NodeAnswer:
        """What is said is in the journal when it is answered, unless it counts for nothing."""
        self._has_begun.wait()
        if word.incarnation > self._incarnation:
            self._give_way(word.incarnation)
        told = self._judged(word)
        heard = last_of(word) if told.clear else self._heard.take(word)
        return answer_to(told, self._incarnation, heard)

    def _judged(self, word: NodeWord) -> Word:
        """What is said from a node that the run does without counts for nothing."""
        if self._heard.is_of_older(word):
            return GONE
        self._links.hear(word)
        told = self._watch.beat(word)
        if told.leased and word.node not in self._machine.state.roster.nodes:
            self._watch.lose(word.node, "the run does without it")
            told = replace(told, leased=False, clear=True)
        if told.clear and word.empty:
            self._links.release(word.node)
        return told

    def _take(self, events: Iterable[Event]) -> None:
        state = self._machine.state
        self._inbox.put_all(without_known(event, state) for event in events)


def last_of(word: NodeWord) -> int:
    """The number of its newest event."""
    return word.first + len(word.events) - 1


def answer_to(told: Word, incarnation: int, heard: int) -> NodeAnswer:
    return NodeAnswer(
        incarnation=incarnation,
        heard=heard,
        num_nodes=told.num_nodes,
        leased=told.leased,
        clear=told.clear,
    )
