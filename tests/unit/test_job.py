import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import remesh
from remesh.orchestrator.job.job import LATER_KEYS, Job, fingerprint_difference, load_job, parse_job
from remesh.orchestrator.plan.planner import ladder_of
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def tiny(*overrides: str) -> Job:
    return load_job(TINY, overrides)


def test_the_example_is_a_job_with_defaults_filled_in():
    job = tiny()
    assert (job.name, job.train.steps, job.num_microbatches, job.num_leaves) == ("tiny", 80, 12, 12)
    assert job.run_dir == Path("runs/tiny")
    assert job.model.num_kv_heads == job.model.num_heads == 4
    assert job.train.lr_steps == 80
    assert (job.parallel.dp, job.max_dp) == ("auto", 4)
    assert job.elastic.patience_s == 0.5


def test_a_job_is_frozen_and_survives_pickle_and_json():
    job = tiny('data.skip=["30..35"]')
    with pytest.raises(ValidationError, match="frozen"):
        job.train.steps = 3
    assert pickle.loads(pickle.dumps(job)) == job
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.steps=7", 7),
        ("train.lr=1", 1.0),
        ("train.lr=1e-4", 1e-4),
        ("data.source=texts/a b", "texts/a b"),
        ('data.source="texts"', "texts"),
        ("data.source=1\ndir = 2", "1\ndir = 2"),
        ('data.skip=["1..2", "9"]', ("1..2", "9")),
        ("checkpoint.dir=/tmp/x=y", "/tmp/x=y"),
        ("parallel.dp=auto", "auto"),
        ("parallel.dp=3", 3),
        ("elastic.same_bits=true", True),
    ],
)
def test_an_override_is_a_toml_value_or_else_a_string(override, value):
    table, key = override.partition("=")[0].split(".")
    assert getattr(getattr(tiny(override), table), key) == value


def test_later_overrides_win_and_may_open_a_table():
    assert tiny("train.steps=7", "train.steps=9").train.steps == 9
    bare = "\n".join(
        line for line in TINY.read_text().splitlines() if line not in {"[checkpoint]", "every = 20"}
    )
    assert parse_job(bare, name="bare", overrides=["checkpoint.every=5"]).checkpoint.every == 5


def test_a_fixed_dp_caps_the_replicas():
    assert tiny("parallel.dp=2").max_dp == 2
    assert tiny("parallel.dp=2").num_leaves % 2 == 0


def test_the_fingerprint_holds_what_shapes_the_curve_and_nothing_else():
    prints = tiny().fingerprint("d1")
    same = [
        "train.steps=200",
        "train.threads=2",
        "checkpoint.dir=elsewhere",
        "checkpoint.every=3",
        "checkpoint.snapshot_every=0",
        "checkpoint.vault_bytes=1000000",
        "elastic.patience_s=1",
        "elastic.spares=0",
        "data.dir=elsewhere",
        "job.name=other",
        "zero.stage=3",
        "train.recompute=full",
        "train.grad_dtype=bf16",
    ]
    assert all(tiny(override).fingerprint("d1") == prints for override in same)
    other = {
        "job.seed": "1",
        "model.width": "256",
        "model.rope_theta": "1e6",
        "train.global_batch": "48",
        "train.seq_len": "64",
        "train.lr": "1e-3",
        "train.warmup_steps": "0",
        "train.beta2": "0.99",
        "data.skip": '["3"]',
        "model.norm": "layer",
        "model.tied": "true",
        "train.dtype": "bf16",
        "train.z_loss": "1e-4",
    }
    for key, value in other.items():
        difference = fingerprint_difference(prints, tiny(f"{key}={value}").fingerprint("d1"))
        assert difference is not None
        assert key in difference


def test_a_fingerprint_difference_names_both_values():
    old, new = tiny().fingerprint("d1"), tiny("model.width=256").fingerprint("d2")
    assert fingerprint_difference(old, old) is None
    assert fingerprint_difference(old, new) == (
        "model.width was 128 and is 256, data.digest was d1 and is d2"
    )


def test_skips_are_compared_by_what_they_skip():
    first = tiny('data.skip=["30..35", "36"]').fingerprint("d")
    assert tiny('data.skip=["30..36"]').fingerprint("d") == first
    assert first["data.skip"] == "30..36"


def test_a_continued_cosine_curve_ends_where_it_always_ended():
    cosine = ("train.lr_curve=cosine", "train.min_lr=1e-4")
    prints = tiny(*cosine).fingerprint("d")
    longer = tiny(*cosine, "train.steps=200")
    assert fingerprint_difference(prints, longer.fingerprint("d")) is not None
    continued = longer.continuing(prints)
    assert (continued.train.steps, continued.train.lr_steps) == (200, 80)
    assert continued.fingerprint("d") == prints


def test_a_continued_constant_curve_needs_nothing():
    longer = tiny("train.steps=200")
    assert longer.continuing(tiny().fingerprint("d")) is longer


def test_a_continuation_that_would_learn_nothing_is_refused():
    prints = tiny("train.lr_curve=cosine").fingerprint("d")
    with pytest.raises(UserError, match=r"train.steps = 200.* ends at step 80 .*rate of 0"):
        tiny("train.lr_curve=cosine", "train.steps=200").continuing(prints)


def test_an_explicit_horizon_is_kept_and_so_is_compared():
    prints = tiny("train.lr_curve=cosine", "train.lr_steps=100").fingerprint("d")
    other = tiny("train.lr_curve=cosine", "train.lr_steps=90").continuing(prints)
    assert fingerprint_difference(prints, other.fingerprint("d")) == (
        "train.lr_steps was 100 and is 90"
    )


def test_the_package_offers_the_job_and_loads_it_late():
    assert remesh.Job is Job
    assert remesh.load_job is load_job
    with pytest.raises(AttributeError, match="'remesh' has no attribute 'nothing'"):
        remesh.nothing  # noqa: B018 - the access is the point
    code = "import sys, remesh; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_may_change_the_bits_stands_in_the_bit_key():
    other = [
        "train.threads=2",
        "train.grad_dtype=bf16",
        "parallel.tp=2",
        "elastic.same_bits=false",
    ]
    keys = [tiny().bit_key, *(tiny(override).bit_key for override in other)]
    keys.append(tiny("parallel.tp=2", "parallel.sequence=true").bit_key)
    assert len(set(keys)) == len(keys)
    assert keys[0] == "tp=1 cp=1 ep=1 microbatch=2 threads=1"
    same = [
        ("elastic.max_workers=2",),
        ("zero.stage=3", "zero.group=2", "zero.bucket_bytes=1000", "zero.keep_gathered=true"),
        ("train.recompute=attention", "train.recompute_every=2"),
    ]
    assert all(tiny(*overrides).bit_key == keys[0] for overrides in same)


def test_a_run_from_before_the_later_keys_goes_on_with_their_defaults():
    before = tiny().fingerprint("d1")
    assert not [key for key in before if key in LATER_KEYS]
    assert list(before)[:2] == ["job.seed", "model.num_layers"]
    other = tiny("model.norm=layer").fingerprint("d1")
    assert fingerprint_difference(before, other) == "model.norm was unset and is layer"


def test_snapshots_are_taken_unless_the_user_says_otherwise():
    assert (tiny().checkpoint.snapshot_every, tiny().checkpoint.vault_bytes) == ("auto", 0)
    assert tiny("checkpoint.snapshot_every=7").checkpoint.snapshot_every == 7


def test_the_tables_of_the_model_and_of_zero_are_as_the_user_says():
    job = tiny("model.positions=learned", "model.qk_norm=true", "zero.stage=2", "zero.group=2")
    assert (job.model.positions, job.model.qk_norm, job.zero.bucket_bytes) == (
        "learned",
        True,
        25 << 20,
    )
    assert (job.zero.stage, ladder_of(job).highest.shards) == (2, 2)
