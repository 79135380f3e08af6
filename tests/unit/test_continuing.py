"""Where a start takes its run up, and with which values from there on."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from manifests import checkpoint_manifest
from whole_shards import encode_shard

from remesh.actors.controller.commits import ToldFingerprint
from remesh.actors.jobs.continuing import continuation_of
from remesh.actors.jobs.submit import _keep
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.cli.data_commands import ensure_dataset
from remesh.cli.main import main
from remesh.data.manifest import Manifest
from remesh.orchestrator.job.amendments import Amendment, flat
from remesh.orchestrator.job.curve import AMENDABLE, KeyClass, class_of
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.state.checkpoint import prune
from remesh.parallel.state.root_manifest import CheckpointRef, encode_manifest, shard_file_name
from remesh.parallel.state.shards import write_shard

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
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
    start = max(folder.newest_claim(), 1)
    ref = CheckpointRef(step=step, generation=generation, start=start)
    encoded = encode_shard({"x": torch.ones(1)}, ref)
    shard = write_shard(folder.storage, f"{ref.name}/{shard_file_name(0, 1)}", encoded)
    more = {"fingerprint": tiny().fingerprint("d"), "position": step}
    folder.storage.put(
        ref.manifest_path, encode_manifest(checkpoint_manifest(ref, [shard], **more))
    )
    return ref


def stand(folder, *overrides, from_step=None):
    return continuation_of(tiny(*overrides), "d", folder, RunOptions(from_step=from_step))


def begin(folder, *overrides, from_step=None):
    """What a start takes up, once it is kept."""
    found = stand(folder, *overrides, from_step=from_step)
    _keep(folder, found)
    following = folder.last_generation() + 1
    folder.stand_on(found.step, generation=following, start=folder.claim("ab12"))
    return found


def steps(folder):
    return [one.step for one in folder.checkpoints()]


def changes(found):
    return [str(change) for change in found.added]


def test_another_rate_holds_from_the_next_step_on(folder):
    """user 4."""
    found = stand(folder, "train.lr=0.001", "train.clip=0.5")
    assert changes(found) == [
        "from step 41 on: train.lr 0.003 -> 0.001",
        "from step 41 on: train.clip 1.0 -> 0.5",
    ]


def test_batches_that_are_not_consumed_may_still_be_skipped(folder):
    """inputs B1."""
    assert changes(stand(folder, 'data.skip=["41..42"]')) == [
        'from step 41 on: data.skip "" -> "41..42"'
    ]


def test_a_run_goes_back_to_a_kept_checkpoint(folder):
    """inputs B1."""
    found = stand(folder, 'data.skip=["30..40"]', from_step=20)
    assert [one.step for one in found.checkpoints] == [20]
    assert changes(found) == ['from step 21 on: data.skip "" -> "30..40"']


def test_the_same_command_again_changes_nothing_and_the_old_value_is_another_change(folder):
    """user 4."""
    lower = begin(folder, "train.lr=0.001")
    again = begin(folder, "train.lr=0.001", "train.steps=200")
    assert (changes(again), again.kept) == ([], lower.added)
    commit(folder, 60, 3)
    back = begin(folder)
    assert changes(back) == ["from step 61 on: train.lr 0.001 -> 0.003"]
    assert folder.fingerprint() == {
        **tiny().fingerprint("d"),
        "train.lr@41": "0.003 -> 0.001",
        "train.lr@61": "0.001 -> 0.003",
    }
    assert stand(folder).kept == (*lower.added, *back.added)


def test_a_change_that_no_step_has_trained_with_is_taken_back_and_said(folder):
    begin(folder, "train.lr=0.001")
    back = begin(folder)
    assert list(back.notices()) == [
        "taken back before it was trained: from step 41 on: train.lr 0.003 -> 0.001"
    ]
    assert folder.fingerprint() == tiny().fingerprint("d")
    begin(folder, "train.lr=0.001")
    assert list(begin(folder, "train.lr=0.002").notices()) == []


def test_what_makes_another_run_is_refused_before_anything_changes(folder):
    """user 4."""
    before = folder.storage.list()
    with pytest.raises(UserError, match=r"global_batch was 24 and is 48 \(it shapes which samples"):
        stand(folder, "train.lr=0.001", "train.global_batch=48", from_step=20)
    assert folder.storage.list() == before


def test_batches_that_are_consumed_are_refused_with_the_first_that_may_be_skipped(folder):
    """inputs B1."""
    with pytest.raises(UserError, match="may be skipped, or skipped no more, is 41"):
        stand(folder, 'data.skip=["40..45"]')
    assert changes(stand(folder, 'data.skip=["40..45"]', from_step=20))


@pytest.mark.parametrize("step", [0, 30, 60])
def test_a_step_without_a_checkpoint_is_refused_with_those_that_are_kept(folder, step):
    with pytest.raises(UserError, match=rf"--from-step {step}: .* that are kept: 20, 40$"):
        stand(folder, from_step=step)


def test_what_a_run_has_gone_back_behind_is_abandoned_by_all_that_read_it(folder):
    """inputs B1."""
    found = begin(folder, "train.lr=0.001", from_step=20)
    assert list(found.notices()) == [
        "back to step-00000020.gen-1.start-1; abandoned are the checkpoints of 40"
    ]
    assert steps(folder) == [20]
    assert stand(folder, "train.lr=0.001").step == 20
    assert folder.last_generation() == 2
    commit(folder, 30, 3)
    assert steps(folder) == [30, 20]
    assert stand(folder, "train.lr=0.001", "train.steps=30").step == 30


def test_retention_removes_what_is_abandoned_and_the_newest_is_that_of_the_run(folder):
    commit(folder, 60, 1)
    begin(folder, from_step=20)
    commit(folder, 30, 2)
    prune(folder.storage, keep=1)
    assert steps(folder) == [30]
    assert not folder.storage.list("step-00000040")
    assert not folder.storage.list("step-00000060")


def test_a_run_may_go_back_again_and_on_from_where_it_is(folder):
    begin(folder, from_step=20)
    commit(folder, 30, 3)
    commit(folder, 40, 3)
    assert begin(folder, from_step=40).abandoned == ()
    assert steps(folder) == [40, 30, 20]
    begin(folder, from_step=30)
    assert steps(folder) == [30, 20]
    set_aside(folder.places)
    assert not folder.storage.list("step-")


def test_a_curve_that_was_stretched_stays_so(folder):
    wave = ("train.lr_curve=cosine", "train.steps=60")
    commit(folder, 60, 1)
    assert {one.key for one in begin(folder, *wave).added} == {"train.lr_curve", "train.lr_steps"}
    with pytest.raises(UserError, match=r"stretch it .* with --set train\.lr_steps=90, or give it"):
        stand(folder, *wave[:1], "train.steps=90")
    longer = begin(folder, *wave[:1], "train.steps=90", "train.lr_steps=90")
    assert longer.job.train.lr_steps == 90
    again = stand(folder, *wave[:1], "train.steps=90", "train.min_lr=0.001")
    assert again.job.train.lr_steps == 90


def test_a_run_that_falls_back_goes_on_with_what_held_there(folder):
    """Its last checkpoint is damaged, and the one before is older than a change."""
    wave = ("train.lr_curve=cosine", "train.min_lr=0.001")
    begin(folder, *wave, "train.steps=60")
    commit(folder, 60, 2)
    begin(folder, *wave, "train.steps=90", "train.lr_steps=90")
    folder.storage.delete("step-00000060.gen-2.start-2/manifest.json")
    ref = commit(folder, 90, 3)
    folder.storage.put(f"{ref.name}/{shard_file_name(0, 1)}", b"damaged")
    found = stand(folder, *wave, "train.steps=90")
    assert (found.step, changes(found)) == (40, [])
    assert "train.lr_steps 60 -> 90" in str(found.kept[-1])


def test_a_change_that_the_controller_makes_is_told_before_anybody_trains_with_it(folder):
    lower = begin(folder, "train.lr=0.001").added
    told = ToldFingerprint(folder, tiny().fingerprint("d"), lower)
    folder.storage.delete("fingerprint.json")
    told.tell(lower)
    assert not folder.storage.list("fingerprint.json")
    later = Amendment(step=50, key="train.clip", old=1.0, new=0.5)
    told.tell((*lower, later))
    assert folder.fingerprint() == told.told == flat(tiny().fingerprint("d"), (*lower, later))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_what_an_alert_advises_is_accepted_by_a_run_that_stands(folder, rule):
    """user 4."""
    advice = rule["annotations"]["description"]
    named = re.findall(r"\b(?:train|data|checkpoint|elastic)\.[a-z_]+", advice)
    assert all(key in AMENDABLE or class_of(key) is KeyClass.NEITHER for key in named)
    for command in re.findall(r"`(remesh run [^`]+)`", advice):
        overrides = [word for word in shlex.split(command) if "." in word]
        assert changes(stand(folder, *overrides))
    assert "--from-step" not in advice or stand(folder, from_step=20)


def test_an_alert_about_the_rate_and_the_batches_names_commands_for_both():
    """user 4."""
    [rule] = [rule for rule in RULES if rule["alert"] == "RemeshStepsSkipped"]
    commands = re.findall(r"`remesh run ([^`]+)`", rule["annotations"]["description"])
    assert [re.split(r"[ =']+", command)[2] for command in commands] == ["train.lr", "data.skip"]


def small_job(path, *more):
    """The words that name it, with its data built."""
    (path / "a.txt").write_text("to be or not to be, that is the question\n" * 40)
    small = ["train.seq_len=16", f"data.dir={path / 'data'}", f"data.source={path / 'a.txt'}"]
    ensure_dataset(load_job(TINY, small), lambda _: None)
    small += [f"checkpoint.dir={path / 'run'}", *more]
    return [str(TINY), *(word for one in small for word in ("--set", one))]


def test_a_finished_run_refuses_a_change_that_no_step_would_train_with(tmp_path, capsys):
    job = small_job(tmp_path)
    folder = RunFolder(tmp_path / "run")
    digest = Manifest.load(tmp_path / "data").digest
    folder.keep(tiny("train.seq_len=16").fingerprint(digest))
    commit(folder, 80, 1)
    assert main(["run", *job, "--set", "train.lr=0.001"]) == 2
    said = capsys.readouterr().err
    assert "train.lr = 0.001 would hold from step 81 on; raise train.steps too" in said


def test_a_step_without_a_checkpoint_is_exit_code_2_in_one_line(tmp_path, capsys):
    """inputs B1."""
    job = small_job(tmp_path)
    for words, said in (
        (["--from-step", "9"], "--from-step 9: there is no checkpoint of this step"),
        (["--from-step", "9", "--fresh"], "leave one of them out"),
    ):
        assert main(["run", *job, *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
