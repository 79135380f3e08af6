"""Orders to an agent, kept until it says that it has heard them: a lost message is sent again.

A word that is said after the orders have arrived tells of them. One that is on its way meanwhile
does not, so some beats have to pass first. An agent takes its orders by their numbers, one after
the other, so none is obeyed twice, and none before another that was lost.
"""

from collections import deque

from remesh.actors.agent.words import NodeOrder, NodeOrders

PATIENCE_BEATS = 3


class Unheard:
    """The orders of one controller to one agent."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._number = 0
        self._beats = 0
        self._waiting: deque[NodeOrders] = deque()

    def add(self, orders: list[NodeOrder]) -> NodeOrders:
        """As they are to be sent."""
        self._number += 1
        told = NodeOrders(incarnation=self._incarnation, number=self._number, orders=tuple(orders))
        self._waiting.append(told)
        return told

    def hear(self, number: int, *, beat: bool) -> tuple[NodeOrders, ...]:
        """The agent has heard all up to this number; what is to be sent again, in its order.

        Only words that are nothing but beats are counted: others may follow each other at once.
        """
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()
            self._beats = 0
        if not self._waiting or not beat:
            return ()
        self._beats += 1
        if self._beats < PATIENCE_BEATS:
            return ()
        self._beats = 0
        return tuple(self._waiting)
