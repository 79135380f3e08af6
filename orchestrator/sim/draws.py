"""A whole run drawn from one number: its size, its cluster, and what befalls it."""

from dataclasses import replace
from random import Random

from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.sim.mishaps.faults import (
    draw_changes,
    draw_cruel_faults,
    draw_faults,
    draw_vault_faults,
)
from remesh.orchestrator.sim.shells.world import LADDERS, WHOLE, Settings
from remesh.orchestrator.sim.simulation import RunOutcome, Simulation, SimulationError

HALF = 0.5
CRUEL = 0.6
STOPS = frozenset({"stop", "stop twice", "stop now", "driver gone"})
TOO_FEW = "waiting for nodes"
FAILURES = {  # by kind, with what the reason says then
    "corrupt checkpoint": "no state is left",
    "disk full": "is not saved",
    "storage stands still": "no file of it has come in",
    "commit hangs": "has not answered",
    "second start": "another start has claimed the run",
    "bad link": "more than elastic.max_failures",
    "job errs": "the data is not what the job says",
    "bad disk": "Input/output error",
}


def simulate(seed: int) -> RunOutcome:
    """A run drawn from `seed`: its size, how it cuts its state, its faults, every delay.

    Raises: SimulationError if an invariant broke, or if a run that could have finished did not.
    """
    simulation = draw(seed)
    outcome = simulation.run()
    if not _as_expected(outcome):
        text = f"seed {seed}: {outcome.status}: {outcome.reason}"
        raise SimulationError(text, simulation.trace)
    return outcome


def draw(seed: int) -> Simulation:
    """The run, not begun."""
    chance = Random(seed ^ 0x5EED)  # noqa: S311 - a simulation, not a secret
    settings = Settings(
        steps=chance.randint(5, 60),
        every=chance.choice([3, 10, 20]),
        step_s=chance.choice([0.05, 0.2, 0.7]),
        spares=chance.randint(0, 2),
        min_workers=chance.choice([1, 1, 2]),
        slots=chance.randint(2, 4),
        doubled=chance.choice([0.0, 0.05, 0.5]),
        delayed=chance.choice([0.0, 0.03, 0.3]),
    )
    span_s = settings.steps * settings.step_s * 1.3 + 2.0
    faults = draw_faults(chance, settings.steps, span_s)
    vaults = Random(seed ^ 0x7A17)  # noqa: S311 - a simulation, not a secret
    settings = replace(
        settings,
        ladder=_draw_ladder(seed, settings.slots),
        snapshot_every=vaults.choice([0, 0, 1, "auto", 2, 5]),
    )
    if settings.snapshot_every:
        faults += draw_vault_faults(vaults, settings.steps, span_s)
    for kind, salt in (("ladder", 0x1ADD), ("amend", 0xA3E0), ("layout", 0xDE62)):
        faults += draw_changes(kind, Random(seed ^ salt), settings.steps, span_s)  # noqa: S311 - likewise
    cruel = Random(seed ^ 0xC2E1)  # noqa: S311 - likewise
    if cruel.random() < CRUEL:
        settings = _crueller(cruel, settings)
        faults += draw_cruel_faults(cruel, settings.steps, span_s)
    return Simulation(seed, settings, faults)


def _crueller(chance: Random, settings: Settings) -> Settings:
    """Words are lost, storage is slow, nodes stand in racks, and the run is started again."""
    return replace(
        settings,
        lost=chance.choice([0.0, 0.05, 0.3]),
        slow=chance.choice([1.0, 1.0, 1.0, 20.0, 100.0]),
        domains=chance.choice([0, 0, 2, 3]),
        min_nodes=chance.choice([1, 1, 1, 2]),
        room=chance.choice([10**6, 10**6, 2, 8]),
        devices=chance.random() < HALF,
        starts=chance.choice([1, 2, 3]),
        limit_s=8000.0,
    )


def _draw_ladder(seed: int, slots: int) -> Ladder:
    """Every second run has whole replicas. The head's slots alone always make up a mesh."""
    chance = Random(seed ^ 0x5A9E)  # noqa: S311 - a simulation, not a secret
    fitting = [ladder for ladder in LADDERS if ladder.smallest(1).workers <= slots]
    return WHOLE if chance.random() < HALF else chance.choice(fitting)


def _as_expected(outcome: RunOutcome) -> bool:
    """The head and its slots always survive: a run reaches its last step.

    Unless it was stopped, or all workers died at once and the only checkpoint was corrupt, or it
    may not go on with as few nodes as are left.
    """
    kinds = {fault.kind for fault in outcome.faults}
    match outcome.status:
        case "finished":
            return True
        case "stopped":
            return bool(STOPS & kinds)
        case "preempted":
            return "head notice" in kinds
        case "crashed":
            return bool({"head dies", "head notice"} & kinds)
        case _:
            if outcome.reason.startswith(TOO_FEW):
                return outcome.lacks_nodes
            found = FAILURES.items()
            return any(kind in kinds and sign in outcome.reason for kind, sign in found)
