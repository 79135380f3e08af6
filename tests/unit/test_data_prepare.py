import json
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from remesh.data.building.build_record import RECORD
from remesh.data.building.prepare import BLOCK_BYTES, build
from remesh.data.building.sources import find_source
from remesh.data.data_error import DataError
from remesh.data.manifest import MANIFEST, ROW_HASHES, Manifest

SEQ_LEN = 63
WHOLE = [MANIFEST, ROW_HASHES, "shard-00000.arrow"]


@pytest.fixture
def folder(tmp_path):
    """Text for nine blocks in three files and some things that are no text."""
    root = tmp_path / "text"
    root.mkdir()
    letters = np.random.default_rng(0).integers(32, 127, 9 * BLOCK_BYTES // 2, np.uint8).tobytes()
    (root / "b.txt").write_bytes(letters[:1000])
    (root / "a.md").write_bytes(letters[1000:2000])
    (root / "sub").mkdir()
    (root / "sub" / "c.py").write_bytes(letters[2000:])
    (root / "picture.png").write_bytes(b"\x89PNG")
    (root / ".hidden.txt").write_text("hidden")
    (root / "empty.txt").write_text("")
    return root


def tokens_of(out, manifest):
    """All tokens of a dataset as any Arrow reader sees them."""
    tables = [pa.ipc.open_file(out / shard.file).read_all() for shard in manifest.shards]
    tokens = pa.concat_tables(tables)["tokens"].combine_chunks()
    return np.frombuffer(tokens.values.buffers()[1], np.uint16)


def text_of(out, manifest):
    return tokens_of(out, manifest).astype(np.uint8).tobytes()


def test_the_rows_are_the_documents_end_to_end(folder, tmp_path):
    out = tmp_path / "out"
    manifest = build(str(folder), out, SEQ_LEN)
    files = [folder / "a.md", folder / "b.txt", folder / "sub" / "c.py"]
    text = b"".join(file.read_bytes() + b"\0" for file in files)
    num_tokens = manifest.num_rows * manifest.row_tokens
    assert text_of(out, manifest) == text[:num_tokens]
    assert len(text) - num_tokens < manifest.row_tokens
    assert Manifest.load(out) == manifest
    assert all(shard.size_bytes == (out / shard.file).stat().st_size for shard in manifest.shards)


def test_many_blocks_make_several_shards(tmp_path):
    source = tmp_path / "big.txt"
    source.write_bytes(b"x" * (17 * BLOCK_BYTES // 2))
    manifest = build(str(source), tmp_path / "out", SEQ_LEN)
    assert [len(shard.blocks) for shard in manifest.shards] == [16, 1]
    assert [shard.file for shard in manifest.shards] == ["shard-00000.arrow", "shard-00001.arrow"]
    assert all(b.size_bytes < 1.01 * BLOCK_BYTES for shard in manifest.shards for b in shard.blocks)


def test_json_lines_give_their_texts(tmp_path):
    source = tmp_path / "lines.jsonl"
    lines = [{"text": "Gr\u00fc\u00dfe", "id": 1}, {"text": ""}, {"text": "a\0b"}]
    source.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    manifest = build(str(source), tmp_path / "out", 1)
    assert text_of(tmp_path / "out", manifest) == "Gr\u00fc\u00dfe\0a b\0".encode()


def test_the_standard_library_is_a_source():
    source = find_source("python-stdlib")
    names = [file.name for file in source.files]
    assert "argparse.py" in names
    assert not any("site-packages" in file.parts or "test" in file.parts for file in source.files)
    assert source.size_bytes > 5e6


def test_progress_ends_at_the_whole(folder, tmp_path):
    told = []
    build(str(folder), tmp_path / "out", SEQ_LEN, on_progress=lambda *counts: told.append(counts))
    size = find_source(str(folder)).size_bytes
    assert told == sorted(told)
    assert len(told) == 10
    assert told[-1] == (size, size)


@pytest.mark.parametrize(
    ("name", "text"),
    [("empty.txt", ""), ("empty.jsonl", '{"text": ""}\n\n{"text": ""}\n'), ("short.txt", "abc")],
)
def test_a_source_without_a_row_is_named_and_leaves_no_dataset(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"{name} is too short: its text has \d tokens"):
        build(str(tmp_path / name), tmp_path / "out", SEQ_LEN)
    with pytest.raises(DataError, match="no data in"):
        Manifest.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "number"),
    [('{"text": "a"}\n{"txt": "b"}', 2), ("{", 1), ('["text"]', 1), ('{"text": 5}', 1), ("7", 1)],
)
def test_a_bad_json_line_is_named(tmp_path, line, number):
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(DataError, match=f"x.jsonl, line {number}: expected a JSON object with a"):
        build(str(tmp_path / "x.jsonl"), tmp_path / "out", SEQ_LEN)


def test_no_source_no_text_and_bad_lengths_are_refused(tmp_path):
    for source, says in [("nowhere", "no source nowhere"), ("", "no source:")]:
        with pytest.raises(DataError, match=says):
            build(source, tmp_path / "out", SEQ_LEN)
    with pytest.raises(DataError, match="no text in"):
        build(str(tmp_path), tmp_path / "out", SEQ_LEN)
    for seq_len in (0, -5, 1 << 25):
        with pytest.raises(DataError, match=f"seq_len={seq_len}: expected 1 to 16777216"):
            build("python-stdlib", tmp_path / "out", seq_len)
    assert not (tmp_path / "out").exists()


def test_building_again_changes_nothing(folder, tmp_path):
    out = tmp_path / "out"
    manifest = build(str(folder), out, SEQ_LEN)
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert build(str(folder), out, SEQ_LEN) == manifest
    assert {file.name: file.stat().st_mtime_ns for file in out.iterdir()} == before


def test_other_data_is_never_overwritten(folder, tmp_path):
    out = tmp_path / "out"
    manifest = build(str(folder), out, SEQ_LEN)
    with pytest.raises(DataError, match=r"holds other data \(seq_len=63, not 64\)"):
        build(str(folder), out, 64)
    (folder / "a.md").write_text("another text")
    with pytest.raises(DataError, match="as it was then, not"):
        build(str(folder), out, SEQ_LEN)
    assert Manifest.load(out) == manifest


def test_building_again_mends_a_damaged_dataset(folder, tmp_path):
    out = tmp_path / "out"
    manifest = build(str(folder), out, SEQ_LEN)
    shard = out / manifest.shards[0].file
    whole = shard.read_bytes()
    block = manifest.shards[0].blocks[3]
    at = block.offset + block.size_bytes // 2
    for damaged in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at], None):
        shard.write_bytes(damaged) if damaged is not None else shard.unlink()
        assert build(str(folder), out, SEQ_LEN) == manifest
        assert shard.read_bytes() == whole
    hashes = (out / ROW_HASHES).read_bytes()
    for damaged in (bytes([hashes[0] ^ 1]) + hashes[1:], hashes[:-1], hashes + b"0", None):
        (out / ROW_HASHES).unlink()
        if damaged is not None:
            (out / ROW_HASHES).write_bytes(damaged)
        assert build(str(folder), out, SEQ_LEN) == manifest
        assert (out / ROW_HASHES).read_bytes() == hashes


def test_two_builds_at_once_make_one_dataset(folder, tmp_path):
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(build, str(folder), tmp_path / "out", SEQ_LEN) for _ in range(3)]
        manifests = [job.result() for job in jobs]
    assert manifests[0] == manifests[1] == manifests[2] == Manifest.load(tmp_path / "out")


def test_a_build_that_stops_anywhere_leaves_no_dataset_and_the_next_is_whole(folder, tmp_path):
    whole = build(str(folder), tmp_path / "whole", SEQ_LEN)
    out = tmp_path / "out"
    for block in range(9):

        def stop(done_bytes, _total_bytes, last=(block + 0.5) * BLOCK_BYTES / 2):
            if done_bytes > last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build(str(folder), out, SEQ_LEN, on_progress=stop)
        assert not (out / MANIFEST).exists()
    assert build(str(folder), out, SEQ_LEN) == whole
    assert sorted(f.name for f in out.iterdir()) == WHOLE


def test_a_killed_build_leaves_no_dataset(folder, tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, sys; from pathlib import Path; from remesh.data.building.prepare import build\n"
        "build(sys.argv[1], Path(sys.argv[2]), 63, on_progress=lambda *_: os.kill(os.getpid(), 9))"
    )
    command = [sys.executable, "-c", script, str(folder), str(out)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    unfinished = [f"{ROW_HASHES}.partial", "shard-00000.arrow.partial"]
    assert sorted(f.name for f in out.iterdir()) == [RECORD, *unfinished]
    build(str(folder), out, SEQ_LEN)
    assert sorted(f.name for f in out.iterdir()) == WHOLE


def test_a_full_disk_is_one_clear_line(folder, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * BLOCK_BYTES, hard))
    try:
        with pytest.raises(DataError) as error:
            build(str(folder), tmp_path / "out", SEQ_LEN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    says = f"cannot write {tmp_path / 'out'}: File too large; make room for it"
    assert str(error.value).startswith(says)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_in_the_way_is_one_clear_line(folder, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(DataError, match=f"cannot write {out}: (File exists|Not a directory)"):
            build(str(folder), out, SEQ_LEN)
