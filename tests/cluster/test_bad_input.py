"""What only a started run can find wrong: one clear line and exit code 2, nothing left hanging."""

import json
import shutil
import subprocess

import needed
import numpy as np
import pytest
from place import SHORT

from remesh.data.manifest import Manifest


@pytest.fixture
def dataset(cluster_place, short_undisturbed, tmp_path):
    """A copy of the short job's dataset, to be damaged."""
    assert short_undisturbed  # it has built the dataset
    folder = tmp_path / "data"
    shutil.copytree(cluster_place.root / "runs" / "data" / "python-stdlib-64", folder)
    return folder


@pytest.fixture
def small_disk(tmp_path):
    needed.root()
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def refused(cluster, place, run_dir, *args):
    outcome = place.remesh(
        "run", SHORT, "--address", cluster.address, "--set", f"checkpoint.dir={run_dir}", *args
    )
    assert outcome.code == 2, outcome.err + outcome.out
    assert "Traceback" not in outcome.err + outcome.out
    return outcome.err.strip() or outcome.out.splitlines()[-1]


def test_a_corrupt_data_block(cluster, cluster_place, dataset, tmp_path):
    shard = dataset / "shard-00000.arrow"
    block = Manifest.load(dataset).shards[0].blocks[0]
    with shard.open("r+b") as file:
        file.seek(block.tokens_at)
        tokens = np.frombuffer(file.read(block.rows * 2 * 65), np.uint16) ^ 1
        file.seek(block.tokens_at)
        file.write(tokens.tobytes())
    line = refused(cluster, cluster_place, tmp_path / "run", "--set", f"data.dir={dataset}")
    assert "block 0" in line
    assert str(shard) in line
    assert "build it again with: remesh data build" in line
    assert_its_traceback_is_kept(cluster_place, tmp_path / "run")


def assert_its_traceback_is_kept(place, run_dir):
    """User 12: by the event and in the worker's own log, after the cluster's nodes are let go."""
    events = json.loads(place.remesh("events", run_dir, "--json").out)
    told = next(event for event in events if "traceback" in event)
    worker = told["text"].partition(":")[0]
    logs = place.remesh("logs", run_dir, "--worker", worker)
    for text in (told["traceback"], logs.out, place.remesh("logs", run_dir).out):
        assert "DataError: " in text
    assert "stream.py" in told["traceback"]
    assert "stream.py" in logs.out


def test_a_disk_that_fills_up_in_mid_run(cluster, cluster_place, small_disk):
    line = refused(cluster, cluster_place, small_disk / "run")
    assert "No space left on device" in line


@pytest.mark.usefixtures("short_undisturbed")
def test_a_checkpoint_of_another_model(cluster, cluster_place):
    run_dir = cluster_place.root / "runs" / "short"
    line = refused(cluster, cluster_place, run_dir, "--set", "model.ffn_width=96")
    assert "model.ffn_width was 128 and is 96" in line
    assert "--fresh" in line
