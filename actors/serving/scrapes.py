"""Who scrapes a run, so that its metrics outlast it until each of them knows how it ended.

Series vanish with the controller, and then a run that was stopped looks like one that died: alerts
go by the last state that was scraped. A file for the node's exporter or a gateway to push to would
do as well, and lost: each is one more thing that has to be there.
"""

import re
from threading import Lock

MOST_S = 60.0  # between two scrapes, as Prometheus does it when it is not told otherwise
LATE = 1.5  # times as long as between its last two scrapes: then it does not come any more
MOST_CLIENTS = 64

# Prometheus tells its time limit with each scrape; a person who looks at the page does not, and is
# not waited for.
_SCRAPE = re.compile(
    rb"GET /metrics[ ?].*^x-prometheus-scrape-timeout-seconds:",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


class Scrapes:
    """By the address of each client: when it last scraped, and how long after the time before."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}
        self._lock = Lock()

    def note(self, client: str, heard: bytes, asked_s: float) -> None:
        """A client asked this, and is told what was so at `asked_s` or later."""
        if not _SCRAPE.match(heard):
            return
        with self._lock:
            before = self._seen.pop(client, None)
            every_s = MOST_S if before is None else min(asked_s - before[0], MOST_S)
            self._seen[client] = (asked_s, every_s)
            if len(self._seen) > MOST_CLIENTS:
                del self._seen[next(iter(self._seen))]

    def awaited_s(self, since_s: float, now_s: float) -> float:
        """How long to wait, at most, until each has scraped after `since_s`; 0 if there is none."""
        with self._lock:
            late = [last + LATE * every for last, every in self._seen.values() if last < since_s]
        return max([0.0, *(moment_s - now_s for moment_s in late)])
