"""Kills and freezes at random moments, on real Ray nodes: every run finishes with the same bits."""

import os
import random
import signal
import time

from place import SHORT, until

from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder

FAULTS = ("kill", "freeze", "two kills")


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--random-runs")))


def ranks(folder):
    """Pids of the members by rank and the newest step, of a run that trains."""
    contact = folder.contact()
    status = contact and ask(contact, "/status")
    if not status or status["phase"] != "running":
        return None
    return {w["rank"]: w["pid"] for w in status["workers"] if w["rank"] is not None}, status["step"]


def strike(fault, chance, folder):
    pids, _ = until(lambda: ranks(folder), 60, "the run trains")
    time.sleep(chance.uniform(0.0, 1.5))
    victims = chance.sample(sorted(pids.values()), 2 if fault == "two kills" else 1)
    for victim in victims:
        os.kill(victim, signal.SIGSTOP if fault == "freeze" else signal.SIGKILL)
        time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.3))))


def test_a_run_disturbed_at_random_has_the_same_bits(cluster, cluster_place, curve, seed):
    chance = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    run_dir = cluster_place.root / "runs" / f"random-{seed}"
    report = cluster_place.root / f"random-{seed}.json"
    process = cluster_place.start(
        "run", SHORT, "--set", f"checkpoint.dir={run_dir}", "--address", cluster.address,
        "--report", report,
    )  # fmt: skip
    try:
        strike(fault, chance, RunFolder(run_dir))
    finally:
        outcome = cluster_place.finish(process, report)
    assert outcome.code == 0, outcome.err + outcome.out
    assert len(outcome.report["losses"]) == 80
    curve.assert_same_bits(outcome.report)
    assert len(outcome.report["generations"]) >= 2, outcome.out
