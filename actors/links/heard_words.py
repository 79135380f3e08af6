"""What agents say, each event once: they number theirs and say them until they are heard.

A word may come twice, and later than the one after it; what stands in the journal is not taken
again. A controller that takes over knows no numbers: what comes twice then is harmless, since every
event says what is, not what changes.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remesh.actors.agent.words import NodeWord
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.events import Event, WorkerParked


@dataclass(slots=True)
class _Hearing:
    """The newest event of the newest agent of a node. The lock is held until it is journaled."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    agent: int = 0
    number: int = 0


class HeardWords:
    """`put` returns once the events are in the journal; it is called for each node in order."""

    def __init__(self, put: Callable[[Sequence[Event]], object]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._heard: dict[str, _Hearing] = defaultdict(_Hearing)

    def is_of_older(self, word: NodeWord) -> bool:
        """Whether there is a newer agent on the node than the one that says this."""
        with self._lock:
            return word.agent < self._heard[word.node].agent

    def take(self, word: NodeWord) -> int:
        """Take what is new; the number of the newest event that the agent need not say again."""
        with self._lock:
            heard = self._heard[word.node]
        with heard.lock:
            if word.agent > heard.agent:
                heard.agent, heard.number = word.agent, 0
            newest = word.first + len(word.events) - 1
            if word.agent == heard.agent and newest > heard.number:
                self._put(word.events[max(0, heard.number + 1 - word.first) :])
                heard.number = newest
            return max(newest, heard.number)


def without_known(event: Event, state: State) -> Event:
    """The same without the records of steps that the machine has heard of: each member of a mesh
    tells them as it parks, and all are alike.

    Read beside the thread that changes the state: what it knows, it knows for good.
    """
    if not isinstance(event, WorkerParked) or not state.live(event.generation):
        return event
    heard_step = state.heard_step(event.generation)
    new = tuple(record for record in event.records if record.step > heard_step)
    return event if len(new) == len(event.records) else replace(event, records=new)
