"""The events of a node, numbered, and kept until they are in the journal; the orders it takes."""

from collections import deque

from remesh.actors.agent.words import NodeAnswer, NodeOrders, NodeWord
from remesh.orchestrator.control.words.events import Event


class Outbox:
    """`agent` tells this one from one before it on the same node: it grows."""

    def __init__(self, node: str, agent: int, door: str = "") -> None:
        self._node = node
        self._agent = agent
        self._door = door
        self._first = 1
        self._events: deque[Event] = deque()
        self._said = 0
        self._heard = 0
        self.incarnation = 0

    def put(self, event: Event) -> None:
        self._events.append(event)

    @property
    def has_news(self) -> bool:
        """Whether there are events that no word has told of yet."""
        return self._first + len(self._events) - 1 > self._said

    def obeys(self, incarnation: int) -> bool:
        """Whether orders of this controller count: not once a newer one was heard."""
        if incarnation > self.incarnation:
            self.incarnation, self._heard = incarnation, 0
        return incarnation == self.incarnation

    def takes(self, orders: NodeOrders) -> bool:
        """Whether these are to be obeyed: the next ones of the newest controller.

        Of those that come twice, or after some that were lost, it hears again.
        """
        if not self.obeys(orders.incarnation) or orders.number != self._heard + 1:
            return False
        self._heard = orders.number
        return True

    def word(self, *, empty: bool, stood_still_s: float) -> NodeWord:
        """All that was not acknowledged: what a lost answer was about is told again."""
        self._said = self._first + len(self._events) - 1
        return NodeWord(
            node=self._node,
            agent=self._agent,
            first=self._first,
            events=tuple(self._events),
            incarnation=self.incarnation,
            heard=self._heard,
            empty=empty,
            stood_still_s=stood_still_s,
            door=self._door,
        )

    def hear(self, answer: NodeAnswer) -> bool:
        """Forget what is in the journal; whether the answer counts."""
        if not self.obeys(answer.incarnation):
            return False
        while self._events and self._first <= answer.heard:
            self._events.popleft()
            self._first += 1
        return True
