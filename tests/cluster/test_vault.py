"""ZeRO-3 without a checkpoint: what a dead worker or node held comes back from memory."""

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from place import SHORT, until

from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder

SHARED_MEMORY = Path("/dev/shm")
RUN = "runs/vaults"
SHARDED = (
    "--fresh",
    "--set", f"checkpoint.dir={RUN}",
    "--set", "zero.stage=3",
    "--set", "elastic.max_workers=4",
    "--set", "checkpoint.every=1000",
    "--set", "checkpoint.snapshot_every=1",
)  # fmt: skip
LAG = 3  # steps that the copies may lie behind on a busy machine


@pytest.fixture(scope="module")
def struck(place, cluster_place, short_undisturbed):
    """The report and the id of a run that loses its vaults, then a worker, and later a node.

    So each comes out of a vault that was started again, and each out of another one. Another run
    was in its folder before.
    """
    assert short_undisturbed
    shutil.copytree(cluster_place.root / "runs" / "short", place.root / RUN)
    report = place.root / "report-vault.json"
    run = place.start(
        "run", SHORT, *SHARDED, "--nodes", 2, "--workers-per-node", 2, "--report", report,
        "--set", "train.steps=110", "--kill", "worker@60", "--kill", "node@90",
    )  # fmt: skip
    first = until(lambda: vaults_of(place), 100, "two vaults")
    assert list(place.root.glob(f"{RUN}/.old-*"))
    run_id = RunFolder(place.root / RUN).contact().run
    for pid in pids_of_vaults(run_id):
        os.kill(pid, signal.SIGKILL)
    until(lambda: vaults_of(place).isdisjoint(first) and vaults_of(place), 30, "two others")
    outcome = place.finish(run, report)
    assert outcome.code == 0, outcome.err + outcome.out
    # user 1: the run that was there is kept until this one has finished, and no longer.
    assert not list(place.root.glob(f"{RUN}/.old-*"))
    return outcome.report, run_id


@pytest.fixture(scope="module")
def killed(struck):
    return struck[0]


def vaults_of(place):
    """The addresses of both vaults of the run, none before the controller has heard of both."""
    contact = RunFolder(place.root / RUN).contact()
    status = contact and ask(contact, "/status")
    found = {node["vault"] for node in status["nodes"] if node["vault"]} if status else set()
    return found if len(found) == 2 else set()


def pids_of_vaults(run_id):
    stamps = Path("/tmp").glob(f"remesh-*/remesh-{run_id}-*.vault/vault")
    return [int.from_bytes(path.read_bytes()[:8], sys.byteorder) for path in stamps]


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


def test_a_killed_worker_and_a_killed_node_do_not_change_a_bit(curve_of_four, killed):
    assert len(recoveries(killed)) == 2
    curve_of_four.assert_same_bits(killed)


def test_each_recovery_is_told_in_parts(killed):
    for _, life in recoveries(killed):
        assert sum(life["recovery_parts"].values()) == pytest.approx(life["recovery_s"], abs=0.01)


def test_survivors_keep_their_processes(killed):
    for before, after in recoveries(killed):
        old = {member["worker"]: member["pid"] for member in before["members"]}
        new = {member["worker"]: member["pid"] for member in after["members"]}
        assert old.keys() & new.keys()
        assert all(old[worker] == new[worker] for worker in old.keys() & new.keys())


def test_no_storage_is_read_and_no_more_steps_are_lost_than_promised(killed):
    for life in killed["generations"][1:]:
        assert "with checkpoint" not in life["reason"]
        assert "with fresh parameters" not in life["reason"]
        assert life["lost_steps"] <= 1 + LAG


def test_a_killed_vault_is_started_again_and_serves_in_the_same_generation(killed):
    """The vaults die in the first one, and make no other."""
    (before, after), _ = recoveries(killed)
    assert (before["generation"], after["generation"]) == (1, 2)


def test_nothing_is_left_in_shared_memory(struck):
    _, run_id = struck
    assert list(SHARED_MEMORY.glob(f"remesh-{run_id}-*")) == []
