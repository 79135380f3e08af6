"""How long nodes have been silent, by the interval at which each was told to beat.

Time is an argument. The limits follow from what a node was told last: told to beat every two
seconds, it is not late after one. A node that stood still once is likely to do so again, for its
host is busy: for a while it has so much longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from remesh.orchestrator.job.timers import Timers

EXCUSED_PATIENCES = 120  # for which a node that stood still has more time


@dataclass(slots=True)
class _Beat:
    """`told` is the number of nodes by which it beats. `stood_still_s` holds until `excused_s`."""

    at_s: float
    told: int
    silent: bool = False
    stood_still_s: float = 0.0
    excused_s: float = 0.0

    def grace_s(self, now_s: float) -> float:
        return self.stood_still_s if now_s < self.excused_s else 0.0


@dataclass(slots=True)
class Late:
    """Seconds of silence by node: those that are suspects from now on, those that are lost."""

    silent: dict[str, float] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)


class Beats:
    """Of the nodes whose beats are expected."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._beats: dict[str, _Beat] = {}

    def __len__(self) -> int:
        return len(self._beats)

    def __contains__(self, node: str) -> bool:
        return node in self._beats

    def expect(self, nodes: Iterable[str], from_s: float) -> None:
        """Their silence counts from this moment on. Until they are told, they beat as one alone
        would, or as a controller before this one has told them: as of all of these.
        """
        names = list(nodes)
        for node in names:
            self._beats[node] = _Beat(at_s=from_s, told=len(names) + len(self._beats))

    def forget(self, node: str) -> None:
        self._beats.pop(node, None)

    def beat(self, node: str, now_s: float, stood_still_s: float = 0.0) -> int:
        """A sign of life; what the node is told: how many beat."""
        beat = self._beats.setdefault(node, _Beat(at_s=now_s, told=0))
        beat.at_s, beat.silent, beat.told = now_s, False, len(self._beats)
        if stood_still_s > beat.grace_s(now_s):
            beat.stood_still_s = stood_still_s
            beat.excused_s = now_s + EXCUSED_PATIENCES * self._timers.patience_s
        return beat.told

    def excuse(self, for_s: float) -> None:
        """Whoever listens did not run for so long: what it missed proves nothing."""
        for beat in self._beats.values():
            beat.at_s += for_s

    def late(self, now_s: float) -> Late:
        """Who is silent for too long, each said once until it beats again or is forgotten."""
        late = Late()
        for node, beat in self._beats.items():
            age_s = now_s - beat.at_s - beat.grace_s(now_s)
            if age_s > self._timers.node_lost_s(beat.told):
                late.lost[node] = now_s - beat.at_s
            elif age_s > self._timers.node_silent_s(beat.told) and not beat.silent:
                beat.silent = True
                late.silent[node] = now_s - beat.at_s
        return late
