"""The lease of the command that drives a run: it renews it by asking how the run stands.

When it lapses the run stops, so that nothing trains on for somebody who is gone. Nobody comes back
for a run that is over: then the short lease holds.
"""

import time
from collections.abc import Callable

from remesh.actors.links.pulse import Pulse

DRIVER_GONE = "the command that started the run is gone"


class DriverLease:
    """`short_s` holds until the driver has asked once, and again when the run is over."""

    def __init__(
        self, short_s: float, long_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._short_s = short_s
        self._long_s = long_s
        self._lease_s = short_s
        self._clock = clock
        self._renewed_s = clock()

    def renew(self) -> None:
        self._renewed_s = self._clock()
        self._lease_s = self._long_s

    def lengthen(self) -> None:
        """The driver of a controller that takes over has asked the one before."""
        self._lease_s = self._long_s

    def excuse(self, for_s: float) -> None:
        """The controller could not be asked for so long."""
        self._renewed_s += for_s

    def has_lapsed(self, *, over: bool) -> bool:
        limit_s = self._short_s if over else self._lease_s
        return self._clock() - self._renewed_s >= limit_s


def wait_until_gone(
    lease: DriverLease,
    pulse: Pulse,
    is_over: Callable[[], bool],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when the lease has lapsed. Once the run is over nobody else looks at the pulse."""
    while True:
        pulse.look()
        if lease.has_lapsed(over=is_over()):
            return
        wait(pulse.every_s)
