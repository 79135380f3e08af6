"""A fence between generations: once it is up, every generation at or below it is over.

The fence is sticky and only grows, because the message that ends a generation may overtake the
one that forms it. Whoever is about to block in a generation leaves a way to free itself (`guard`);
raising the fence uses all of them, from the raising thread, so that a control thread needs to know
nothing about groups. An event that is set and cleared again would lose a fence raised too early.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from remesh.parallel.plan.errors import Cancelled


class GenerationFence:
    """One a process. Generations are integers; the fence starts below all of them."""

    def __init__(self, generation: int = -1) -> None:
        self._generation = generation
        self._lock = threading.Lock()
        self._ways_out: dict[object, tuple[int, Callable[[], None]]] = {}

    @property
    def generation(self) -> int:
        """The newest generation that is over."""
        return self._generation

    def up(self, generation: int) -> None:
        """Ends all generations up to this one and frees whoever is blocked in them. Repeatable."""
        with self._lock:
            self._generation = max(self._generation, generation)
            ways_out = [free for born, free in self._ways_out.values() if born <= generation]
        for free in ways_out:
            free()

    def is_up(self, generation: int) -> bool:
        return generation <= self._generation

    def check(self, generation: int) -> None:
        """Raises: Cancelled if this generation is over."""
        if self.is_up(generation):
            raise Cancelled(f"generation {generation} is over")

    def wait(self, generation: int, outcome: "Future[Any]") -> None:
        """Until it is there, or the generation is over: what is waited for need not know of it.

        Raises: Cancelled if this generation is over.
        """
        woken = threading.Event()
        key = self.guard(generation, woken.set)
        try:
            outcome.add_done_callback(lambda _: woken.set())
            woken.wait()
        finally:
            self.release(key)
        self.check(generation)

    def guard(self, generation: int, free: Callable[[], None]) -> object:
        """Has `free` called when the fence rises to `generation`; returns the key for `release`.

        `free` may be called several times and from any thread.

        Raises: Cancelled if this generation is over.
        """
        key = object()
        with self._lock:
            self.check(generation)
            self._ways_out[key] = (generation, free)
        return key

    def release(self, key: object) -> None:
        with self._lock:
            self._ways_out.pop(key, None)
