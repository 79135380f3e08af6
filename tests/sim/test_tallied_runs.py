"""What is counted of simulated runs, whatever befalls them."""

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from tallied_drive import dealt_s, flat

from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.sim.mishaps.faults import draw_faults
from remesh.orchestrator.sim.shells.world import Settings
from remesh.orchestrator.sim.simulation import Simulation

STEPS = 40
SETTINGS = Settings(steps=STEPS, every=10, step_s=0.13, spares=1, doubled=0.3, delayed=0.1)


@pytest.mark.parametrize("seed", range(40))
def test_counters_only_grow_and_agree_with_the_run(seed):
    simulation = Simulation(seed, SETTINGS, draw_faults(Random(seed), STEPS, 8.0))
    outcome = simulation.run()
    machine, tally = Controller(simulation.newest.options), Tally()
    before, tokens, started_s, now_s = flat(tally), {}, None, 0.0
    for event, now_s in journal.read(simulation.newest.journal.read()):
        machine.handle(event, now_s)
        tally.note(event, now_s, machine.state)
        now = flat(tally)
        assert all(new >= old for new, old in zip(now, before, strict=True)), event
        before = now
        started_s = now_s if machine.state.started and started_s is None else started_s
        tokens |= {record.step: record.did.tokens for record in getattr(event, "records", ())}
    assert tally.steps >= outcome.steps
    assert tally.tokens == sum(tokens[step] for step in range(1, tally.steps + 1))
    assert sum(tally.failures.values()) == machine.state.budget.total
    assert tally.lost_steps == sum(life.lost_steps for life in outcome.generations)
    recovered = [life for life in outcome.generations if life.recovery_s is not None]
    assert tally.recoveries == len(recovered)
    assert sum(tally.recovery_s.values()) == pytest.approx(sum(g.recovery_s for g in recovered))
    assert dealt_s(tally) == pytest.approx(now_s - started_s)
    assert sum(tally.goodput.phase_s.values()) == pytest.approx(now_s - started_s)
