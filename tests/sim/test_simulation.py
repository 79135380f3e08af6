"""Whole clusters in one thread: many seeds with faults, and a few exact scenes."""

import re
from collections import Counter

import pytest
from control_values import options
from played import play

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import Commit, Form, StartWorker
from remesh.orchestrator.control.words.events import (
    ControllerRestarted,
    NodeJoined,
    NodeLost,
    RunStarted,
    Tick,
    WorkerLost,
)
from remesh.orchestrator.control.words.records import FreshState, Member
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.sim.__main__ import ENOUGH, _verdict, main
from remesh.orchestrator.sim.checks.coverage import everything
from remesh.orchestrator.sim.checks.invariants import Invariants
from remesh.orchestrator.sim.draws import draw, simulate
from remesh.orchestrator.sim.many import Sum
from remesh.orchestrator.sim.mishaps.faults import (
    CRUEL_WEIGHTS,
    VAULT_WEIGHTS,
    WEIGHTS,
    PlannedFault,
)
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.world import Settings
from remesh.orchestrator.sim.simulation import Simulation
from remesh.parallel.plan.layout import Layout

SEEDS = range(50)
SETTINGS = Settings(steps=30, every=10, step_s=0.13)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_ends_as_it_should_whatever_befalls_it(seed):
    play(seed)


def test_a_seed_tells_the_same_story_every_time():
    assert simulate(7).trace == simulate(7).trace


def test_all_kinds_of_faults_are_among_the_seeds():
    kinds = {fault.kind for seed in range(200) for fault in draw(seed).faults}
    of_all = {"ladder", "layout", "amend", *WEIGHTS, *CRUEL_WEIGHTS}
    assert kinds - set(VAULT_WEIGHTS) == of_all - set(VAULT_WEIGHTS)


def scene(*faults, seed=1, settings=SETTINGS):
    chosen = [PlannedFault(kind=kind, at_s=at_s) for kind, at_s in faults]
    return Simulation(seed, settings, chosen).run()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("kind", "limit_s"), [("kill", 1.0), ("kill node", 2.0)])
def test_recovers_soon_from_a_death_amid_a_step(kind, limit_s, seed):
    outcome = scene((kind, 2.0), seed=seed)
    assert outcome.status == "finished"
    after = [life for life in outcome.generations if life.recovery_s is not None]
    assert after or kind == "kill"  # the one that was killed may have been a spare
    for life in after:
        assert life.recovery_s < limit_s
        assert life.lost_steps <= 1


def test_a_node_whose_kernel_tells_of_its_death_is_not_waited_for_until_it_is_silent():
    outcomes = [scene(("kill node", 2.0), seed=seed) for seed in range(20)]
    lives = [life for one in outcomes for life in one.generations if life.recovery_parts]
    refused = [life for life in lives if "refused" in life.reason]
    silent = [life for life in lives if "silent for" in life.reason]
    assert refused
    assert silent
    decide_s = [life.recovery_parts.detect + life.recovery_parts.decide for life in refused]
    assert max(decide_s) < SETTINGS.patience_s
    assert min(life.recovery_parts.decide for life in silent) > SETTINGS.patience_s / 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["join", "drain", "scale"])
def test_nodes_that_come_and_go_as_announced_cost_no_step(kind, seed):
    outcome = scene((kind, 2.0), seed=seed)
    assert outcome.status == "finished"
    assert all(life.lost_steps == 0 and life.recovery_s is None for life in outcome.generations)


@pytest.mark.parametrize("seed", range(5))
def test_a_drain_ends_within_seconds_of_its_announcement(seed):
    outcome = scene(("drain", 2.0), seed=seed)
    story = "\n".join(outcome.trace)
    began_s, ended_s = (moment_of(word, story) for word in ("NodeDraining(", "ReleaseNode("))
    assert ended_s - began_s < 3.0


def moment_of(word, story):
    """When the event was handled that this word stands in, or below."""
    before = story[: story.index(word)]
    return float(re.findall(r"^ *(\d+\.\d+) ", before, re.MULTILINE)[-1])


@pytest.mark.parametrize("seed", range(5))
def test_a_blink_is_not_a_fault(seed):
    outcome = scene(("blink", 2.0), ("blink", 2.9), seed=seed)
    assert outcome.status == "finished"
    assert all(life.recovery_s is None for life in outcome.generations)


@pytest.mark.parametrize("seed", range(12))
def test_a_death_of_the_controller_ends_no_mesh_unless_all_leases_lapse(seed):
    outcome = scene(("kill controller", 2.0), seed=seed)
    assert outcome.status == "finished"
    lapsed = any("died meanwhile" in line for line in outcome.trace)
    for life in outcome.generations:
        assert lapsed or (life.recovery_s is None and life.lost_steps == 0)


def test_a_run_without_a_chance_ends_with_the_last_cause():
    settings = Settings(steps=60, every=100, step_s=0.13, max_failures=3)
    deaths = [("kill all", 4.0 * number) for number in range(1, 9)]
    outcome = scene(*deaths, settings=settings)
    assert outcome.status == "failed"
    assert "4 failures, more than elastic.max_failures=3; the last: " in outcome.reason


def test_the_command_tells_how_the_runs_ended_and_what_happened_in_one(capsys):
    assert main(["--seeds", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 seeds: ")
    assert main(["--seed", "1", "--trace"]) == 0
    assert "RunStarted() -> waiting" in capsys.readouterr().out


def watched():
    """Invariants of a controller that knows two nodes and one worker on each."""
    controller = Controller(options())
    watch = Invariants(controller)
    for event in (NodeJoined(node="a", slots=1), NodeJoined(node="b", slots=1), RunStarted()):
        watch.after(event, controller.handle(event, 0.0))
    return watch


def test_a_restarted_controller_may_repeat_itself_but_not_contradict_itself():
    watch = watched()
    commit = Commit(generation=7, step=4, files=())
    watch.after(Tick(), [form(1, 0), commit])
    watch.after(ControllerRestarted(down_s=1.0), [form(1, 0), commit])
    with pytest.raises(InvariantError, match="does not follow"):
        watch.after(ControllerRestarted(down_s=1.0), [form(1, 3)])


def form(generation, from_step):
    return Form(
        generation=generation,
        rung=Rung(layout=Layout(dp=1)),
        members=(Member(worker="worker-0", node="a", rank=0, at_step=None),),
        restore=FreshState(),
        from_step=from_step,
    )


@pytest.mark.parametrize(
    ("event", "commands", "message"),
    [
        (NodeLost(node="b", cause=""), [StartWorker(worker="w", node="b")], "goes to the dead"),
        (WorkerLost(worker="worker-0", cause=""), [form(1, 0)], "goes to the dead"),
        (Tick(), [form(2, 0)], "does not follow 0"),
        (Tick(), [form(1, 5)], "starts from 5, not 0"),
        (Tick(), [Commit(generation=7, step=4, files=())] * 2, "was asked for before"),
    ],
)
def test_what_must_not_happen_is_noticed(event, commands, message):
    with pytest.raises(InvariantError, match=message):
        watched().after(event, commands)


def summed(seeds, *, reached, broken=()):
    statuses = Counter({"finished": seeds - len(broken)})
    return Sum(statuses=statuses, reached=Counter(dict.fromkeys(reached, 1)), broken=list(broken))


def test_many_seeds_that_never_came_somewhere_fail(capsys):
    """Nobody noticed when the verdict on what was reached was left out."""
    first, *others = sorted(everything())
    assert _verdict(summed(ENOUGH, reached=others)) == 1
    assert f"never reached: {first}\n" in capsys.readouterr().out
    assert _verdict(summed(ENOUGH, reached=[first, *others])) == 0


def test_too_few_of_them_tell_nothing_of_that():
    assert _verdict(summed(ENOUGH - 1, reached=[])) == 0
    assert _verdict(summed(ENOUGH - 1, reached=[], broken=["seed 7: it broke"])) == 1
