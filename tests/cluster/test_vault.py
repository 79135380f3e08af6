"""ZeRO-3 without a checkpoint: what a dead worker or node held comes back from memory."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from place import SHORT, until

from remesh.actors.run.folder import RunFolder

SHARED_MEMORY = Path("/dev/shm")
SHARDED = (
    "--fresh",
    "--set", "zero.stage=3",
    "--set", "elastic.max_workers=4",
    "--set", "checkpoint.every=1000",
    "--set", "checkpoint.snapshot_every=1",
)  # fmt: skip
LAG = 3  # steps that the copies may lie behind on a busy machine


@pytest.fixture(scope="module", autouse=True)
def left_before():
    return set(SHARED_MEMORY.glob("remesh-*"))


def finished(place, *args):
    outcome = place.run(SHORT, *SHARDED, *args)
    assert outcome.code == 0, outcome.err + outcome.out
    # user 1: the run that was there is kept until this one has finished, and no longer.
    assert not list(place.root.glob("runs/short/.old-*"))
    return outcome.report


@pytest.fixture(scope="module")
def killed(place):
    """One run that loses a worker and later a node, so that each comes out of another vault."""
    faults = ("--kill", "worker@20", "--kill", "node@50")
    return finished(place, "--nodes", 2, "--workers-per-node", 2, *faults)


def recoveries(report):
    """Of each fault the generation before it, and the one after."""
    lives = report["generations"]
    return [pair for pair in itertools.pairwise(lives) if pair[1]["recovery_s"]]


def nodes_of(life):
    return {member["node"] for member in life["members"]}


def test_a_killed_worker_is_replaced_from_a_vault(killed):
    before, after = recoveries(killed)[0]
    assert any(f"from the vault of {node}" in after["reason"] for node in nodes_of(before))


def test_a_killed_node_is_replaced_from_the_vault_of_its_buddy(killed):
    before, after = recoveries(killed)[-1]
    [dead] = nodes_of(before) - nodes_of(after)
    [buddy] = nodes_of(after)
    assert f"from the vault of {buddy}" in after["reason"]
    assert f"from the vault of {dead}" not in after["reason"]


def test_neither_changes_a_bit(curve_of_four, killed):
    assert len(recoveries(killed)) == 2
    curve_of_four.assert_same_bits(killed)


def test_no_storage_is_read_and_no_more_steps_are_lost_than_promised(killed):
    for life in killed["generations"][1:]:
        assert "with checkpoint" not in life["reason"]
        assert "with fresh parameters" not in life["reason"]
        assert life["lost_steps"] <= 1 + LAG


def vault_of(place):
    """The pid of the vault of the only run in this place, 0 before there is one."""
    contact = RunFolder(place.root / "runs" / "short").contact()
    run = contact.run if contact else "-"
    stamps = Path("/tmp").glob(f"remesh-*/remesh-{run}-*.vault/vault")
    return next((int.from_bytes(path.read_bytes()[:8], sys.byteorder) for path in stamps), 0)


def test_a_killed_vault_is_started_again_and_serves_in_the_same_generation(place):
    report = place.root / "report-vault.json"
    run = place.start(
        "run", SHORT, *SHARDED, "--nodes", 1, "--workers-per-node", 2, "--report", report,
        "--set", "train.steps=200", "--kill", "worker@190",
    )  # fmt: skip
    first = until(lambda: vault_of(place), 100, "a vault")
    time.sleep(1)
    os.kill(first, signal.SIGKILL)
    outcome = place.finish(run, report)
    assert outcome.code == 0, outcome.err + outcome.out
    [(_, after)] = recoveries(outcome.report)
    [node] = nodes_of(after)
    assert after["generation"] == 2
    assert f"from the vault of {node}" in after["reason"]


@pytest.mark.usefixtures("killed")
def test_nothing_is_left_in_shared_memory(left_before):
    assert set(SHARED_MEMORY.glob("remesh-*")) <= left_before
