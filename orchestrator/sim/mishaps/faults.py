"""What befalls the simulated cluster: drawn from the seed, at random or cruelly close moments."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

WEIGHTS = {
    "kill": 6,
    "kill twice": 2,
    "kill node": 3,
    "kill controller": 3,
    "freeze": 3,
    "blink": 2,
    "cut off": 3,
    "join": 3,
    "drain": 3,
    "short notice": 1,
    "scale": 3,
    "flap": 2,
    "corrupt checkpoint": 1,
    "bad copies": 1,
    "kill all": 1,
    "stop": 1,
}
VAULT_WEIGHTS = {
    "kill vault": 3,
    "freeze vault": 2,
    "kill worker and vault": 2,
    "rot": 1,
    "kill node": 2,
    "kill": 2,
}
CRUEL_WEIGHTS = {
    "storage stands still": 3,
    "disk full": 1,
    "commit hangs": 1,
    "standstill": 3,
    "agent stalls": 3,
    "false word": 2,
    "partition": 2,
    "bad link": 1,
    "hang": 3,
    "unkillable": 2,
    "bad disk": 1,
    "job errs": 1,
    "device twice": 1,
    "slow host": 1,
    "head dies": 1,
    "head notice": 2,
    "stop": 2,
    "stop twice": 2,
    "stop now": 1,
    "driver gone": 1,
    "second start": 1,
    "kill": 2,
    "kill controller": 2,
}
SHORTLY_AFTER = 0.5
WITH_A_STEP = 0.2
CHANGES = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """Strikes at a moment of the training or, if `at_step` is set, soon after that step's vote."""

    kind: str
    at_s: float = 0.0
    at_step: int | None = None


def draw_faults(chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """Up to six faults.

    About half of them strike while the one before is being dealt with, a few others when a step
    ends: every second of those when the last one does.
    """
    return _drawn(
        chance, steps, span_s, chance.choices(*_weighted(WEIGHTS), k=chance.randint(0, 6))
    )


def draw_vault_faults(chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """Up to three more for a run with vaults."""
    weighted = _weighted(VAULT_WEIGHTS)
    return _drawn(chance, steps, span_s, chance.choices(*weighted, k=chance.randint(0, 3)))


def draw_cruel_faults(chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """Up to four of the crueller kinds."""
    weighted = _weighted(CRUEL_WEIGHTS)
    return _drawn(chance, steps, span_s, chance.choices(*weighted, k=chance.randint(1, 4)))


def draw_changes(kind: str, chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """In every third run one or two more: other meshes than the present ones are wanted, or other
    rates.
    """
    if chance.random() > CHANGES:
        return []
    return _drawn(chance, steps, span_s, [kind] * chance.randint(1, 2))


def _weighted(weights: Mapping[str, int]) -> tuple[list[str], list[int]]:
    return list(weights), list(weights.values())


def _drawn(chance: Random, steps: int, span_s: float, kinds: list[str]) -> list[PlannedFault]:
    faults: list[PlannedFault] = []
    for kind in kinds:
        if chance.random() < WITH_A_STEP:
            at_step = chance.choice([steps, chance.randint(1, steps)])
            faults.append(PlannedFault(kind=kind, at_step=at_step))
            continue
        at_s = chance.uniform(0.0, span_s)
        if faults and chance.random() < SHORTLY_AFTER:
            at_s = faults[-1].at_s + chance.uniform(0.0, 1.5)
        faults.append(PlannedFault(kind=kind, at_s=at_s))
    return sorted(faults, key=lambda fault: fault.at_s)
