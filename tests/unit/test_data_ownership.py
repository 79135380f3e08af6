"""A build removes and replaces what it has made itself, told by its record, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remesh.data.building.build_record import RECORD
from remesh.data.building.prepare import BLOCK_BYTES, build
from remesh.data.data_error import DataError
from remesh.data.manifest import ROW_HASHES, Manifest

SEQ_LEN = 63
LINE = b"to be or not to be, that is the question.......\n"


@pytest.fixture
def source(tmp_path):
    """Text for two shards and a half."""
    path = tmp_path / "big.txt"
    path.write_bytes(LINE * (BLOCK_BYTES // len(LINE) * 20))
    return str(path)


def killed(source, out, after_bytes):
    """A build that is killed once it has read so much."""
    script = (
        "import os, sys; from pathlib import Path; from remesh.data.building.prepare import build\n"
        "def end(done, total):\n"
        "    if done >= int(sys.argv[3]): os.kill(os.getpid(), 9)\n"
        "build(sys.argv[1], Path(sys.argv[2]), 63, on_progress=end)"
    )
    subprocess.run([sys.executable, "-c", script, source, str(out), str(after_bytes)], check=False)
    return sorted(file.name for file in out.iterdir())


def test_files_of_the_user_survive_a_build(source, tmp_path):
    """issue 9, Delivered 3: neither a name like a shard's nor an ending makes a file ours."""
    out = tmp_path / "out"
    out.mkdir()
    mine = ["shard-mine.arrow", "shard-99.arrow", "notes.partial", "shard-00009.arrow"]
    for name in mine:
        (out / name).write_text("mine")
    manifest = build(source, out, SEQ_LEN)
    assert [(out / name).read_text() for name in mine] == ["mine"] * 4
    assert Manifest.load(out) == manifest


@pytest.mark.parametrize(
    "name", ["shard-00001.arrow", "shard-00000.arrow.partial", "manifest.json.partial"]
)
def test_a_file_of_the_user_is_never_written_over(source, tmp_path, name):
    """issue 9, Delivered 3: where a name is taken, the build is refused and leaves no trace."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(DataError, match=f"{out / name} is not of this build; .* another folder"):
        build(source, out, SEQ_LEN)
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [(name, "mine")]


def test_what_a_killed_build_left_goes_with_the_next_one(source, tmp_path):
    """issue 9, Delivered 3: by the record that the killed one kept."""
    whole = build(source, tmp_path / "whole", SEQ_LEN)
    for after_bytes in (0, 17 * BLOCK_BYTES // 2, 35 * BLOCK_BYTES // 2):
        out = tmp_path / "out"
        assert "manifest.json" not in killed(source, out, after_bytes)
        assert build(source, out, SEQ_LEN) == whole
        names = [shard.file for shard in whole.shards]
        assert sorted(file.name for file in out.iterdir()) == ["manifest.json", ROW_HASHES, *names]
        shutil.rmtree(out)


def test_a_record_that_names_what_no_build_makes_is_not_followed(source, tmp_path):
    """issue 9, Delivered 3: only names of a build's own files, and only in its folder."""
    out = tmp_path / "out"
    killed(source, out, 0)
    record = out / RECORD
    (tmp_path / "precious").write_text("mine")
    (out / "notes.txt").write_text("mine")
    with record.open("a") as file:
        file.write("../precious\nnotes.txt\n/etc/passwd\nshard-\n\0\n")
    build(source, out, SEQ_LEN)
    assert (tmp_path / "precious").read_text() == (out / "notes.txt").read_text() == "mine"
    assert Path("/etc/passwd").exists()
    assert not record.exists()
