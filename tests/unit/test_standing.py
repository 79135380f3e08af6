"""Where a start takes its run up, and with which values from there on."""

from pathlib import Path

import pytest
from manifests import checkpoint_manifest

from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.job.job import load_job
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile, encode_manifest

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.fixture
def folder(tmp_path):
    """A run of the tiny job with checkpoints of the steps 20 and 40."""
    found = RunFolder(tmp_path / "runs" / "tiny")
    found.keep(tiny().fingerprint("d"))
    for step in (20, 40):
        commit(found, step, 1)
    return found


def tiny(*overrides):
    return load_job(TINY, overrides)


def commit(folder, step, generation):
    ref = CheckpointRef(step=step, generation=generation)
    shard = ShardFile(name="rank-0-of-1.safetensors", size_bytes=3, digest="x")
    more = {"fingerprint": tiny().fingerprint("d"), "position": step}
    folder.storage.put(f"{ref.name}/{shard.name}", b"abc")
    folder.storage.put(
        ref.manifest_path, encode_manifest(checkpoint_manifest(ref, [shard], **more))
    )
    return ref


def stand(folder, *overrides, from_step=None):
    from remesh.actors.jobs.standing import standing  # noqa: PLC0415 - not there yet

    return standing(tiny(*overrides), "d", folder, from_step=from_step)


def changes(found):
    return [str(change) for change in found.added]


@pytest.mark.xfail(strict=True, reason="user 4")
def test_another_rate_holds_from_the_next_step_on(folder):
    """user 4."""
    found = stand(folder, "train.lr=0.001", "train.clip=0.5")
    assert changes(found) == [
        "from step 41 on: train.lr 0.003 -> 0.001",
        "from step 41 on: train.clip 1.0 -> 0.5",
    ]


@pytest.mark.xfail(strict=True, reason="inputs B1")
def test_batches_that_are_not_consumed_may_still_be_skipped(folder):
    """inputs B1."""
    assert changes(stand(folder, 'data.skip=["41..42"]')) == [
        'from step 41 on: data.skip "" -> "41..42"'
    ]


@pytest.mark.xfail(strict=True, reason="inputs B1")
def test_a_run_goes_back_to_a_kept_checkpoint(folder):
    """inputs B1."""
    found = stand(folder, 'data.skip=["30..40"]', from_step=20)
    assert [one.step for one in found.checkpoints] == [20]
    assert changes(found) == ['from step 21 on: data.skip "" -> "30..40"']
