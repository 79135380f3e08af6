"""ZeRO-3 without a checkpoint: what a dead worker or node held comes back from memory."""

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from place import SHORT, SLOWLY, slowly, until

from remesh.actors.node.processes import kill, session_members
from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.vault.snapshot_pace import MOST_S

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
OFTEN = "runs/often"
STEP_S = 0.3
MOST_LOST = LAG + MOST_S / 0.1  # steps, of SLOWLY
KILLS, KILL_EVERY = 4, 50


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
        "--set", "train.steps=70", *slowly(STEP_S),
    )  # fmt: skip
    first = until(lambda: vaults_of(place), "two vaults")
    assert list(place.root.glob(f"{RUN}/.old-*"))
    run_id = RunFolder(place.root / RUN).contact().run
    for pid in pids_of_vaults(run_id):
        os.kill(pid, signal.SIGKILL)
    until(lambda: vaults_of(place).isdisjoint(first) and vaults_of(place), "two others")
    victim = trains_on(place, RUN, steps=2 * LAG)[-1]
    os.kill(victim, signal.SIGKILL)
    end_node(trains_on(place, RUN, but=victim, steps=2 * LAG)[-1])
    outcome = place.finish(run, report)
    assert outcome.code == 0, outcome.err + outcome.out
    # user 1: the run that was there is kept until this one has finished, and no longer.
    assert not list(place.root.glob(f"{RUN}/.old-*"))
    return outcome.report, run_id


@pytest.fixture(scope="module")
def killed(struck):
    return struck[0]


def trains_on(place, folder, *, but=None, steps=LAG):
    """The pids of four ranks that have made these steps together, those on the head first.

    None of them is the one that was killed.
    """
    status = until(lambda: all_train(place, folder, but), "four train")
    last = status["step"] + steps
    status = until(lambda: all_train(place, folder, but, last), f"four reach step {last}")
    ranks = [one for one in status["workers"] if one["rank"] is not None]
    return [one["pid"] for one in sorted(ranks, key=lambda one: one["node"])]


def all_train(place, folder, but=None, from_step=0):
    status = status_of(place, folder)
    if not status or status["phase"] != "running" or status["step"] < from_step:
        return None
    pids = [one["pid"] for one in status["workers"] if one["rank"] is not None]
    return status if len(pids) == 4 and but not in pids else None


def status_of(place, folder):
    contact = RunFolder(place.root / folder).contact()
    return contact and ask(contact, "/status")


def end_node(rank):
    """Every process of the node on which it is."""
    for pid in session_members({os.getsid(rank)}):
        kill(pid)


def vaults_of(place):
    """The addresses of both vaults of the run, none before the controller has heard of both."""
    status = status_of(place, RUN)
    found = {node["vault"] for node in status["nodes"] if node["vault"]} if status else set()
    return found if len(found) == 2 else set()


def pids_of_vaults(run_id):
    stamps = Path("/tmp").glob(f"remesh-*/remesh-{run_id}-*.vault/vault")
    pids = [int.from_bytes(path.read_bytes()[:8], sys.byteorder) for path in stamps]
    assert all(pids), "0 would stand for the test's own processes"
    return pids


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


def test_a_world_in_which_a_worker_dies_every_fifty_steps_goes_on(cluster, cluster_place):
    """speed 3, with real processes: by chance it fell back to the same step each time.

    Of what is lost the most is the interval of its snapshots, which is bounded in seconds.
    """
    report = cluster_place.root / "report-often.json"
    run = cluster_place.start(
        "run", SHORT, *SHARDED, "--address", cluster.address, "--report", report,
        "--set", f"checkpoint.dir={OFTEN}", "--set", "checkpoint.snapshot_every=auto",
        "--set", "train.steps=5000", *SLOWLY,
    )  # fmt: skip
    try:
        killed = None
        for _ in range(KILLS):
            ranks = trains_on(cluster_place, OFTEN, but=killed, steps=KILL_EVERY)
            os.kill(killed := ranks[-1], signal.SIGKILL)
        trains_on(cluster_place, OFTEN, but=killed)
        run.send_signal(signal.SIGINT)
        outcome = cluster_place.finish(run, report)
    finally:
        run.kill()
    assert outcome.code == 130, outcome.err + outcome.out
    lives = [life for life in outcome.report["generations"] if life["recovery_s"]]
    assert len(lives) >= KILLS
    for life in lives:
        assert "with checkpoint" not in life["reason"]
        assert "with fresh parameters" not in life["reason"]
        assert life["lost_steps"] <= MOST_LOST
    begun = [life["from_step"] for life in lives]
    assert begun == sorted(set(begun)), "each goes on behind where the one before began"
