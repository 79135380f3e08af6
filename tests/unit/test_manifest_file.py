import dataclasses
import json
import math
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.root_manifest import (
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    CheckpointRef,
    DataPosition,
    ShardFile,
    decode_manifest,
    encode_manifest,
    parse_name,
    shard_file_name,
)

MANIFEST = CheckpointManifest(
    step=20,
    generation=3,
    start=2,
    fingerprint={"model.width": 128, "train.lr": 3e-3, "data.skip": "30..35", "tied": False},
    bit_key="cpu/threads=1",
    data=DataPosition(digest="sha256:00ff", position=480),
    files=tuple(
        ShardFile(name=shard_file_name(rank, 2), size_bytes=100 + rank, digest=f"xxh3_128:{rank}")
        for rank in range(2)
    ),
    created_by={"remesh": "0.1.0", "torch": "2.13.0"},
)


def changed(**values):
    return encode_manifest(dataclasses.replace(MANIFEST, **values))


def with_metrics(metrics):
    return json.dumps({**json.loads(encode_manifest(MANIFEST)), "metrics": metrics}).encode()


def test_what_was_written_is_read_back():
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_every_flipped_bit_is_an_error():
    encoded = encode_manifest(MANIFEST)
    for position in range(len(encoded)):
        for bit in (0x01, 0x20, 0x80):
            torn = bytearray(encoded)
            torn[position] ^= bit
            with pytest.raises(CheckpointError):
                decode_manifest(bytes(torn))


def test_every_truncation_is_an_error():
    encoded = encode_manifest(MANIFEST)
    for length in range(len(encoded)):
        with pytest.raises(CheckpointError):
            decode_manifest(encoded[:length])


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"", "not JSON"),
        (b"\x80\x04\x95", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"files":' * 100_000, "nested too deeply"),
        (b"[" + b"[]," * 2_000_000 + b"[]]", "more than the 1000000 values allowed"),
        (b"[" + b"0," * 2_000_000 + b"0]", "more than the 1000000 values allowed"),
        (b'{"format_version": 2' + b"0" * 5000 + b"}", "not JSON"),
        (b"[]", "format_version none, as those of 0.1, this Remesh reads 3"),
        (b'{"format_version": 2}', "format_version 2, this Remesh reads 3"),
        (
            b'{"format_version": "' + b"2" * 5000 + b'"}',
            "format_version '2222222222222222222, this",
        ),
        (b'{"format_version": 3}', "KeyError: 'step'"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "bytes allowed"),
        (changed(step=-1), "no whole number"),
        (changed(step=True), "no whole number"),
        (changed(step=1.0), "no whole number"),
        (changed(step=2**63), "no whole number"),
        (changed(files=(ShardFile(name="a", size_bytes=10**4000, digest=""),)), "no whole number"),
        (with_metrics({"loss": "1"}), "no finite number"),
        (with_metrics({"loss": True}), "no finite number"),
        (with_metrics({"loss": 10**400}), "OverflowError"),
        (changed(fingerprint={"model": {"width": 1}}), "not flat"),
        (changed(bit_key=None), "no text"),
        (changed(files=(*MANIFEST.files, MANIFEST.files[0])), "missing, doubled or foreign"),
        (changed(files=(ShardFile(name="a", size_bytes=1, digest=""),)), "missing, doubled"),
        (changed(files=MANIFEST.files[1:]), "missing, doubled or foreign"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_reason(encoded, message):
    with pytest.raises(CheckpointError, match=message):
        decode_manifest(encoded)


def test_metrics_are_read_back_and_what_is_not_finite_is_left_out():
    encoded = changed(metrics={"loss": 2.5, "accuracy": math.nan, "norm": math.inf})
    assert decode_manifest(encoded).metrics == {"loss": 2.5}
    assert changed(metrics={"loss": math.nan}) == encode_manifest(MANIFEST)


def test_a_refused_manifest_costs_no_more_memory_than_a_few_of_its_sizes():
    bomb = b"[" + b"[]," * (MAX_MANIFEST_BYTES // 3 - 2) + b"[]]"
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="values allowed"):
        decode_manifest(bomb)
    assert tracemalloc.get_traced_memory()[1] < len(bomb)
    tracemalloc.stop()


@pytest.mark.parametrize(
    "name", ["../rank-0-of-1.safetensors", "/etc/passwd", "rank-0-of-1.safetensors/..", "manifest"]
)
def test_a_file_name_cannot_lead_out_of_the_folder(name):
    with pytest.raises(CheckpointError, match="foreign"):
        decode_manifest(changed(files=(ShardFile(name=name, size_bytes=1, digest=""),)))


def test_infinity_and_nan_are_refused():
    for number in ("NaN", "Infinity", "1e999"):
        encoded = encode_manifest(MANIFEST).replace(b"0.003", number.encode())
        with pytest.raises(CheckpointError):
            decode_manifest(encoded)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=2,
)


@settings(max_examples=40)
@given(st.sampled_from(sorted(json.loads(encode_manifest(MANIFEST)))), values)
def test_any_value_in_any_place_is_an_error_and_no_crash(key, value):
    wrong = {**json.loads(encode_manifest(MANIFEST)), key: value}
    encoded = json.dumps(wrong, indent=1, sort_keys=True).encode() + b"\n"
    if encoded != encode_manifest(MANIFEST):
        with pytest.raises(CheckpointError):
            decode_manifest(encoded)


def test_names_carry_step_and_generation():
    ref = CheckpointRef(step=20, generation=3)
    assert ref.name == "step-00000020.gen-3.start-0"
    assert parse_name(ref.name) == ref
    late = CheckpointRef(step=10**9, generation=1)
    assert parse_name(late.name) == late


@pytest.mark.parametrize(
    "name",
    [
        "latest",
        "step-20.gen-3.start-1",
        "step-00000020.gen-3",
        "step-00000020",
        "step-00000020.gen-.start-1",
        "step-00000020.gen-3.start-",
        "step-00000020.gen-3.start-01",
        "step-00000020.gen-03.start-0",
        "step-00000020.gen-3.start-1.old",
        "step-000000020.gen-3.start-1",
        "step-0000002\N{ARABIC-INDIC DIGIT ZERO}.gen-3.start-1",
        " step-00000020.gen-3.start-0",
    ],
)
def test_foreign_names_are_no_checkpoints(name):
    assert parse_name(name) is None


def test_the_newest_start_has_the_newest_of_it_the_newest_generation_and_then_the_later_step():
    """control A12: the latest step is not the newest one where the run has gone back."""
    places = [(1, 7, 100), (1, 8, 20), (1, 8, 40), (2, 3, 10)]
    refs = [CheckpointRef(start=n, generation=g, step=s) for n, g, s in places]
    assert sorted([refs[2], refs[0], refs[3], refs[1]]) == refs


def test_the_pure_files_of_the_model_and_of_checkpoints_need_no_torch():
    code = (
        "import sys, remesh.parallel.plan.model_config, remesh.parallel.state.fragments, "
        "remesh.parallel.state.root_manifest, remesh.parallel.state.storage, "
        "remesh.parallel.state.landing; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
