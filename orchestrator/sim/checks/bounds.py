"""What a simulated run may cost, given what befell it: meshes, kills, seconds, bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

from remesh.orchestrator.sim.shells.invariant_error import InvariantError

# Seconds that a recovery may take longer for each that struck, 10 where nothing else is said.
SECONDS: Mapping[str, float] = {
    "kill controller": 40.0,
    "standstill": 80.0,
    "storage stands still": 130.0,
    "cut off": 60.0,
    "partition": 120.0,
    "bad link": 200.0,
    "slow host": 200.0,
    "commit hangs": 250.0,
    "disk full": 130.0,
    "device twice": 30.0,
}
MESHES: Mapping[str, int] = {"partition": 20, "bad link": 130}  # more than 4
LASTS = "bad disk"  # for good: a mesh with its node and one without, whenever it is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of all starts together. `steps` counts those that were trained again as well, `recoveries_s`
    end with the first step. So many `cool_downs` of one host, each twice as long as the one before,
    have room in the run.
    """

    meshes: int
    kills: int
    steps: int
    journal_bytes: int
    recoveries_s: Sequence[float]
    cool_downs: int

    def check(self, kinds: Sequence[str], slow: float) -> None:
        """`kinds` are those that struck; everything on storage takes `slow` times as long."""
        again = self.cool_downs * sum(kind == LASTS for kind in kinds)
        most_meshes = 6 + sum(MESHES.get(kind, 4) for kind in kinds) + 2 * again
        limits = {
            "meshes": (self.meshes, most_meshes),
            "kills": (self.kills, 6 * (len(kinds) + 2 + again)),
            "bytes of journal": (
                self.journal_bytes,
                100_000 * self.meshes + 10_000 * self.steps + 50_000,
            ),
            "seconds for a recovery": (
                max(self.recoveries_s, default=0.0),
                15.0 + slow + sum(SECONDS.get(kind, 10.0) for kind in kinds),
            ),
        }
        for what, (cost, most) in limits.items():
            if cost > most:
                raise InvariantError(f"{cost} {what}, of {most} at most for {len(kinds)} faults")


def num_cool_downs(seconds: float, first_s: float) -> int:
    """How many of these have room, each twice as long as the one before."""
    return int(log2(1 + seconds / first_s))
