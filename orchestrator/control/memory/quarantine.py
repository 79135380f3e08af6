"""Which hosts are kept out for a while: one that was lost may be lost again.

Names of nodes are new whenever a machine comes back, so it is known by its address. Where another
node of the same address lives on, the host was not lost: that node alone is kept out, by its name.
A pod that comes back at another address is a new host, and nothing is held against it. Each loss
doubles the cool-down; a host that then stays is forgiven. Keeping a lost host out for ever was the
alternative: a cable that was pulled once would cost the run a machine.
"""

from dataclasses import dataclass, field

COOL_DOWN_PATIENCES = 20
LIMIT_PATIENCES = 7200
FORGIVEN_AFTER = 2  # times the longest cool-down


@dataclass(slots=True, kw_only=True)
class HostLosses:
    count: int = 0
    last_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Quarantine:
    """Moments and durations in seconds; durations grow with the patience."""

    hosts: dict[str, HostLosses] = field(default_factory=dict)

    def note_loss(self, host: str, now_s: float, patience_s: float) -> None:
        losses = self.hosts.setdefault(host, HostLosses())
        if now_s - losses.last_s > FORGIVEN_AFTER * LIMIT_PATIENCES * patience_s:
            losses.count = 0
        losses.count += 1
        losses.last_s = now_s

    def until_s(self, host: str, patience_s: float) -> float:
        """The moment from which the host may be used; one in the past if it was never lost."""
        losses = self.hosts.get(host)
        if losses is None:
            return 0.0
        return losses.last_s + cool_down_s(losses.count, patience_s)

    def take_back(self, host: str) -> None:
        """It was not to blame: the newest loss counts as none, and keeps it out no longer."""
        losses = self.hosts[host]
        losses.count -= 1
        losses.last_s = 0.0
        if not losses.count:
            del self.hosts[host]

    def count(self, host: str) -> int:
        return self.hosts[host].count if host in self.hosts else 0


def cool_down_s(losses: int, patience_s: float) -> float:
    """How long a host is kept out after so many losses."""
    doubled = COOL_DOWN_PATIENCES << min(losses - 1, 16)
    return min(doubled, LIMIT_PATIENCES) * patience_s
