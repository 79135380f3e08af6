import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import remesh
from remesh.orchestrator.job.curve import difference
from remesh.orchestrator.job.job import Job, load_job, parse_job
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


def test_a_continued_cosine_curve_ends_where_it_always_ended():
    cosine = ("train.lr_curve=cosine", "train.min_lr=1e-4")
    prints = tiny(*cosine).fingerprint("d")
    longer = tiny(*cosine, "train.steps=200")
    assert difference(prints, longer.fingerprint("d")) is not None
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
    assert difference(prints, other.fingerprint("d")) == ("train.lr_steps was 100 and is 90")


def test_the_package_offers_the_job_and_loads_it_late():
    assert remesh.Job is Job
    assert remesh.load_job is load_job
    with pytest.raises(AttributeError, match="'remesh' has no attribute 'nothing'"):
        remesh.nothing  # noqa: B018 - the access is the point
    code = "import sys, remesh; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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
