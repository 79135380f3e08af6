"""Simulated runs that have to end as they should."""

import pytest

from remesh.orchestrator.sim.draws import simulate
from remesh.orchestrator.sim.simulation import SimulationError


def play(seed):
    """Fails with the end of the story, and the command that tells it again."""
    try:
        simulate(seed)
    except SimulationError as error:
        story = "\n".join(error.trace[-40:])
        pytest.fail(f"{error}\n{story}\nagain: python -m remesh.orchestrator.sim --seed {seed}")
