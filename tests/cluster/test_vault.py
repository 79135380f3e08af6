"""ZeRO-3 without a checkpoint: what a dead worker or node held comes back from memory."""

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
def killed_worker(place):
    return finished(place, "--nodes", 1, "--workers-per-node", 3, "--kill", "worker@20")


@pytest.fixture(scope="module")
def killed_node(place):
    return finished(place, "--nodes", 2, "--workers-per-node", 2, "--kill", "node@40")


def recovery_of(report):
    """The generation before the fault, and the one after."""
    number = next(n for n, life in enumerate(report["generations"]) if life["recovery_s"])
    return report["generations"][number - 1 : number + 1]


def nodes_of(life):
    return {member["node"] for member in life["members"]}


def test_a_killed_worker_is_replaced_from_the_vault_of_its_node(killed_worker):
    before, after = recovery_of(killed_worker)
    [node] = nodes_of(before)
    assert f"from the vault of {node}" in after["reason"]


def test_a_killed_node_is_replaced_from_the_vault_of_its_buddy(killed_node):
    before, after = recovery_of(killed_node)
    [dead] = nodes_of(before) - nodes_of(after)
    [buddy] = nodes_of(after)
    assert f"from the vault of {buddy}" in after["reason"]
    assert f"from the vault of {dead}" not in after["reason"]


def test_neither_changes_a_bit(curve_of_four, killed_worker, killed_node):
    for report in (killed_worker, killed_node):
        curve_of_four.assert_same_bits(report)


def test_no_storage_is_read_and_no_more_steps_are_lost_than_promised(killed_worker, killed_node):
    for report in (killed_worker, killed_node):
        for life in report["generations"][1:]:
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
    _, after = recovery_of(outcome.report)
    assert after["generation"] == 2
    assert "from the vault of" in after["reason"]


@pytest.mark.usefixtures("killed_worker", "killed_node")
def test_nothing_is_left_in_shared_memory(left_before):
    assert set(SHARED_MEMORY.glob("remesh-*")) <= left_before
