"""The head of a cluster dies, and with it all that Ray would say: the command says it itself."""

import os
import signal
from pathlib import Path

import pytest
from place import SHORT, Place, until

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.node.processes import look, session_members


@pytest.fixture
def mortal(tmp_path):
    """A cluster whose head may be killed, and a place whose commands reach it."""
    cluster = LocalCluster.start(nodes=1, workers_per_node=1)
    yield cluster, Place(tmp_path, cluster.environment())
    cluster.close()


def head_of(sessions):
    """The process of Ray's head."""
    for pid in session_members(set(sessions)):
        if look(pid) and Path(f"/proc/{pid}/exe").resolve().name == "gcs_server":
            return pid
    raise AssertionError(f"there is no head in {sessions}")


def test_a_head_that_is_killed_is_one_line_and_code_4_and_the_run_can_be_taken_up(mortal):
    """security B3: 60 raw lines in a minute, exit code 1 and no sentence."""
    cluster, place = mortal
    longer = ("--set", "train.steps=100000", "--set", "checkpoint.dir=runs/headless")
    process = place.start("run", SHORT, "--address", cluster.address, *longer)
    folder = place.root / "runs" / "headless"
    until(lambda: list(folder.glob("step-*/manifest.json")), "it trains")
    os.kill(head_of(cluster.sessions), signal.SIGKILL)
    outcome = place.finish(process)
    assert outcome.code == 4, outcome.err
    [said] = outcome.err.strip().splitlines()
    assert "the head of the Ray cluster is gone" in said
    assert "the same command resumes at the last checkpoint" in said
    assert "task_manager" not in outcome.out
