"""What each key of the job file shapes, and what a run says of keys that have changed."""

from itertools import combinations
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from remesh.orchestrator.job.curve import (
    OTHERWISE,
    KeyClass,
    bits_change,
    bits_of,
    class_of,
    curve_of,
    difference,
)
from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.job.tables.model_table import ModelTable

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
FIELDS = {
    f"{table}.{key}": field
    for table, schema in Job.model_fields.items()
    for key, field in schema.annotation.model_fields.items()
}
ANOTHER = {
    KeyClass.CURVE: {
        "job.seed": 1,
        "model.num_layers": 5,
        "model.width": 256,
        "model.num_heads": 8,
        "model.num_kv_heads": 2,
        "model.ffn_width": 256,
        "model.vocab_size": 512,
        "model.rope_theta": 1e6,
        "model.norm_eps": 1e-6,
        "model.norm": "layer",
        "model.positions": "learned",
        "model.activation": "gelu",
        "model.bias": True,
        "model.qk_norm": True,
        "model.tied": True,
        "model.num_experts": 4,
        "model.top_k": 1,
        "model.expert_width": 64,
        "model.num_shared_experts": 1,
        "model.num_dense_layers": 1,
        "model.score": "sigmoid",
        "model.normed_scores": False,
        "model.balanced": True,
        "model.capacity_factor": 1.25,
        "data.skip": ("3",),
        "train.global_batch": 48,
        "train.seq_len": 64,
        "train.lr": 1e-3,
        "train.lr_curve": "cosine",
        "train.warmup_steps": 1,
        "train.weight_decay": 0.0,
        "train.beta1": 0.8,
        "train.beta2": 0.99,
        "train.eps": 1e-7,
        "train.clip": 2.0,
        "train.dtype": "bf16",
        "train.z_loss": 1e-4,
        "train.auxiliary_loss": 0.01,
        "train.router_z_loss": 1e-3,
        "train.balance_rate": 1e-3,
    },
    KeyClass.COSINE: {"train.min_lr": 1e-4, "train.lr_steps": 100},
    KeyClass.BITS: {
        "train.microbatch": 1,
        "train.threads": 2,
        "train.grad_dtype": "bf16",
        "parallel.tp": 2,
        "parallel.cp": 2,
        "parallel.ep": 2,
        "parallel.sequence": True,
        "elastic.same_bits": False,
    },
}
DEFAULTS = {
    "job.seed": 0,
    "model.vocab_size": 256,
    "model.rope_theta": 10000.0,
    "model.norm_eps": 1e-5,
    "model.norm": "rms",
    "model.positions": "rope",
    "model.activation": "swiglu",
    "model.bias": False,
    "model.qk_norm": False,
    "model.tied": False,
    "model.num_experts": 0,
    "model.top_k": 2,
    "model.expert_width": 0,
    "model.num_shared_experts": 0,
    "model.num_dense_layers": 0,
    "model.score": "softmax",
    "model.normed_scores": True,
    "model.balanced": False,
    "model.capacity_factor": 0.0,
    "data.skip": (),
    "train.lr": 3e-3,
    "train.min_lr": 0.0,
    "train.lr_curve": "constant",
    "train.warmup_steps": 0,
    "train.weight_decay": 0.1,
    "train.beta1": 0.9,
    "train.beta2": 0.95,
    "train.eps": 1e-8,
    "train.clip": 1.0,
    "train.dtype": "fp32",
    "train.z_loss": 0.0,
    "train.auxiliary_loss": 0.0,
    "train.router_z_loss": 0.0,
    "train.balance_rate": 0.0,
}


def tiny(*overrides: str) -> Job:
    return load_job(TINY, overrides)


def with_another(job: Job, key: str) -> Job:
    """Not checked: some of the values are refused in this version."""
    table, name = key.split(".")
    value = ANOTHER[class_of(key)][key]
    return job.model_copy(
        update={table: getattr(job, table).model_copy(update={name: value})},
    )


def shaped_by(job: Job, key: str) -> set[str]:
    other = with_another(job, key)
    cosine = job.train.lr_curve == "cosine"
    curve = curve_of(job, cosine=cosine) != curve_of(other, cosine=cosine)
    bits = bits_of(job) != bits_of(other)
    return {name for name, differs in (("curve", curve), ("bits", bits)) if differs}


def test_each_key_of_the_job_file_is_in_one_class_and_each_class_has_keys_of_it_only():
    assert frozenset().union(*OTHERWISE.values()) <= FIELDS.keys()
    assert all(not (one & other) for one, other in combinations(OTHERWISE.values(), 2))
    for shapes, another in ANOTHER.items():
        assert [key for key in FIELDS if class_of(key) is shapes] == list(another)


@pytest.mark.parametrize("key", [key for key in FIELDS if class_of(key) is not KeyClass.NEITHER])
def test_a_key_shapes_what_its_class_says(key):
    constant, cosine = tiny(), tiny("train.lr_curve=cosine", "train.lr=1e-2")
    match class_of(key):
        case KeyClass.CURVE:
            job = cosine if key != "train.lr_curve" else constant
            assert shaped_by(job, key) == {"curve"}
        case KeyClass.COSINE:
            assert (shaped_by(constant, key), shaped_by(cosine, key)) == (set(), {"curve"})
        case KeyClass.BITS:
            assert shaped_by(constant, key) == {"bits"}


def test_a_key_that_nobody_has_classed_shapes_the_curve():
    class CappedTable(ModelTable):
        softcap: float = 0.0

    class CappedJob(Job):
        model: CappedTable

    def capped(softcap: float) -> Job:
        values = tiny().model_dump()
        values["model"]["softcap"] = softcap
        return CappedJob.model_validate(values)

    assert capped(0.0).fingerprint("d") == tiny().fingerprint("d")
    assert difference(capped(0.0).fingerprint("d"), capped(30.0).fingerprint("d")) == (
        "model.softcap was unset and is 30.0"
    )


def test_defaults_that_are_left_out_of_fingerprints_stay_what_they_are():
    """One that is changed would have a run of before go on with other mathematics."""
    shaping = (KeyClass.CURVE, KeyClass.COSINE)
    assert {
        key: field.default
        for key, field in FIELDS.items()
        if class_of(key) in shaping and field.default is not PydanticUndefined
    } == DEFAULTS


def test_a_fingerprint_holds_the_data_the_skips_and_the_leaves_too():
    assert tiny().fingerprint("d1") == {
        "model.num_layers": 4,
        "model.width": 128,
        "model.num_heads": 4,
        "model.num_kv_heads": 4,
        "model.ffn_width": 352,
        "train.global_batch": 24,
        "train.seq_len": 128,
        "train.warmup_steps": 10,
        "data.digest": "d1",
        "data.skip": "",
        "leaves": 12,
    }
    assert tiny("elastic.max_workers=2").fingerprint("d1")["leaves"] == 2


def test_skips_are_compared_by_what_they_skip():
    first = tiny('data.skip=["30..35", "36"]').fingerprint("d")
    assert tiny('data.skip=["30..36"]').fingerprint("d") == first
    assert first["data.skip"] == "30..36"


def test_a_difference_names_the_keys_with_both_values():
    old, new = tiny().fingerprint("d1"), tiny("model.width=256", "model.tied=true")
    assert difference(old, old) is None
    assert difference(old, new.fingerprint("d2")) == (
        "model.width was 128 and is 256, data.digest was d1 and is d2, "
        "model.tied was unset and is true"
    )


def test_bits_that_change_are_said_in_a_sentence_with_the_keys():
    old, new = tiny(), tiny("train.threads=2", "train.grad_dtype=bf16", "elastic.same_bits=false")
    assert bits_change(old.bits, new.bits) == (
        "the bits change from here on: train.threads was 1 and is 2, train.grad_dtype was fp32 and "
        "is bf16, elastic.same_bits was true and is false, segments was 4 and is 1"
    )
    assert bits_change(old.bits, tiny("zero.stage=3", "train.recompute=full").bits) is None
    assert bits_change(None, new.bits) is None


def test_a_microbatch_of_another_size_is_other_bits_of_the_same_run():
    other = tiny("train.microbatch=1")
    assert other.fingerprint("d") == tiny().fingerprint("d")
    assert bits_change(tiny().bits, other.bits) is not None


def test_the_largest_number_of_replicas_shapes_the_tree_and_with_it_the_bits():
    other = tiny("elastic.max_workers=6")
    assert other.fingerprint("d") == tiny().fingerprint("d")
    assert bits_change(tiny().bits, other.bits) == (
        "the bits change from here on: segments was 4 and is 6"
    )
    before = {key: value for key, value in tiny().bits.items() if key != "segments"}
    assert "segments was unset and is 4" in bits_change(before, tiny().bits)


def test_the_bit_key_is_its_keys_in_a_text():
    assert tiny().bit_key == (
        "train.microbatch=2 train.threads=1 train.grad_dtype=fp32 parallel.tp=1 parallel.cp=1 "
        "parallel.ep=1 parallel.sequence=false elastic.same_bits=true segments=4"
    )
