import json
from dataclasses import replace

import pytest

from remesh.data.data_error import DataError
from remesh.data.manifest import Block, Manifest, Shard, parse_manifest


def shard(name, *hashes):
    blocks = [
        Block(
            offset=8 + 100 * at,
            size_bytes=100,
            rows=10,
            xxh3=digit * 16,
            tokens_at=28 + 100 * at,
            row_hashes="a" * 16,
        )
        for at, digit in enumerate(hashes)
    ]
    return Shard(file=name, size_bytes=16 + 100 * len(blocks), blocks=tuple(blocks))


MANIFEST = Manifest(
    source="some text",
    source_digest="0" * 32,
    tokenizer="bytes",
    vocab_size=256,
    row_tokens=129,
    num_rows=40,
    shards=(shard("a.arrow", "0", "1"), shard("b.arrow", "2", "3")),
)
A, B = MANIFEST.shards


def test_json_and_back_is_the_identity():
    assert parse_manifest(MANIFEST.to_json(), "m") == MANIFEST
    assert MANIFEST.seq_len == 128


@pytest.mark.parametrize(
    "other",
    [
        replace(MANIFEST, shards=(A, shard("b.arrow", "2", "4"))),
        replace(MANIFEST, shards=(B, A)),
        replace(MANIFEST, shards=(replace(B, file="a.arrow"), replace(A, file="b.arrow"))),
        replace(MANIFEST, shards=(A, B, shard("c.arrow", "5")), num_rows=50),
        replace(MANIFEST, row_tokens=128),
        replace(MANIFEST, tokenizer="words"),
        replace(MANIFEST, vocab_size=257),
    ],
    ids=["other_content", "reordered", "renamed", "appended", "rows", "tokenizer", "vocabulary"],
)
def test_other_data_of_the_same_length_is_another_dataset(other):
    assert other.digest != MANIFEST.digest


def test_a_copy_is_the_same_dataset():
    moved = replace(A, file="elsewhere.arrow")
    assert replace(MANIFEST, source="/mnt/copy", shards=(moved, B)).digest == MANIFEST.digest


def test_a_missing_manifest_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(DataError) as error:
        Manifest.load(tmp_path)
    assert str(error.value) == (
        f"no data in {tmp_path}: there is no manifest.json;"
        f" build it with: remesh data build SOURCE --out {tmp_path}"
    )


def change(path, value):
    def apply(raw):
        *parents, last = path
        for key in parents:
            raw = raw[key]
        if value is None:
            del raw[last]
        else:
            raw[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["version"], 1, "its version is 1, this Remesh reads 2"),
        (["version"], True, "version is bool, expected int"),
        (["num_rows"], None, "it has no 'num_rows'"),
        (["num_rows"], 41, "its blocks hold 40 rows, num_rows is 41"),
        (["num_rows"], "40", "num_rows is str, expected int"),
        (["row_tokens"], 0, "row_tokens is 0, expected a positive integer"),
        (["row_tokens"], 1 << 63, "expected a positive integer"),
        (["shards"], {}, "shards is dict, expected list"),
        (["shards", 0], 5, "found int where an object with file was expected"),
        (["shards", 0, "file"], "../../etc/passwd", "is no name of a shard"),
        (["shards", 0, "file"], "b.arrow", "it names a shard twice"),
        (["shards", 0, "blocks", 1, "offset"], 50, "at offset 50 is out of place"),
        (["shards", 0, "size_bytes"], 100, "is out of place"),
        (["shards", 0, "blocks", 1, "xxh3"], "Z" * 16, "xxh3 is 'ZZZZZZZZZZZZZZZZ', which is no"),
        (["shards", 0, "blocks", 1, "row_hashes"], "a", "row_hashes is 'a', which is no hash"),
        (["shards", 0, "blocks", 1, "row_hashes"], None, "it has no 'row_hashes'"),
        (["shards", 0, "blocks", 1, "tokens_at"], 100, "has its tokens at 100, outside"),
        (["shards", 0, "blocks", 1, "tokens_at"], 208, "has its tokens at 208, outside"),
        (["shards", 0, "blocks", 1, "xxh3"], "9" * 16, "its digest is"),
        (["vocab_size"], 255, "its digest is"),
    ],
)
def test_a_changed_field_is_named(path, value, says):
    raw = json.loads(MANIFEST.to_json())
    change(path, value)(raw)
    with pytest.raises(DataError) as error:
        parse_manifest(json.dumps(raw), "here/manifest.json")
    assert says in str(error.value)
    assert str(error.value).startswith("here/manifest.json is damaged or no manifest of Remesh: ")
    assert "build the data again" in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", MANIFEST.to_json()[:-40], "[" * 100_000])
def test_text_that_is_no_manifest_is_one_clear_line(text):
    with pytest.raises(DataError, match="is damaged or no manifest") as error:
        parse_manifest(text, "m")
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_are_one_clear_line(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot read"):
        Manifest.load(tmp_path)
