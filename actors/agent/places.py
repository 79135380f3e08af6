"""The places of a node, each with a device if there are some: one process each, dead for certain
before the next.
"""

from collections.abc import Sequence


class Places:
    """`devices` are the indices of the node's accelerators, none of them for processors only."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = tuple(devices)
        self._taken: dict[int, str] = {}

    def deal(self, worker: str) -> bool:
        """Take the first free place; whether there was one. Without devices there always is."""
        most = len(self._devices) or len(self._taken) + 1
        free = next((place for place in range(most) if place not in self._taken), None)
        if free is not None:
            self._taken[free] = worker
        return free is not None

    def device(self, worker: str) -> int | None:
        place = next(place for place, taker in self._taken.items() if taker == worker)
        return self._devices[place] if place < len(self._devices) else None

    def free(self, worker: str) -> None:
        """Its process is dead: the kernel says so."""
        self._taken = {place: taker for place, taker in self._taken.items() if taker != worker}
