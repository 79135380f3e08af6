"""What text a dataset is built from, and what is said of the rest."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remesh.cli.main import main
from remesh.data.building.documents import Reading
from remesh.data.building.prepare import build
from remesh.data.data_error import DataError
from remesh.data.manifest import Manifest

TEXT = "to be or not to be, that is the question\n" * 40


def lines(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


LINES = lines(*TEXT.splitlines())


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Builds a dataset by the command and gives its exit code, its digest and what it said."""
    monkeypatch.chdir(tmp_path)

    def built(source, *options, out="out"):
        code = main(["data", "build", str(source), "--out", out, "--seq-len", "16", *options])
        said = capsys.readouterr()
        digest = Manifest.load(Path(out)).digest if code == 0 else None
        return code, digest, said.out + said.err

    return built


def refused(outcome, *says):
    code, _, said = outcome
    assert code == 2, said
    assert said.splitlines()[-1].startswith("remesh: ")
    assert [text for text in says if text not in said] == []
    return said


@pytest.mark.parametrize(
    ("suffix", "packed"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_compressed_corpus_is_read_as_its_text(told, suffix, packed):
    """inputs A3, parallel A7, user 6."""
    Path("c.jsonl").write_text(LINES)
    Path("d.txt").write_text(TEXT)
    for name in ("c.jsonl", "d.txt"):
        Path(name + suffix).write_bytes(packed(Path(name).read_bytes()))
        plain = told(name, out=f"{name}-plain")[1]
        assert told(name + suffix, out=f"{name}-packed")[:2] == (0, plain)


@pytest.mark.parametrize(("suffix", "packed"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_damaged_compressed_file_is_named(told, suffix, packed):
    """inputs A3: cut in the middle, and never compressed at all."""
    for content in (packed(LINES.encode())[:-20], LINES.encode()):
        Path(f"c.jsonl{suffix}").write_bytes(content)
        refused(told(f"c.jsonl{suffix}"), f"c.jsonl{suffix}", "compress")


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("c.jsonl.zst", "zstd -d"),
        ("c.zip", "unpack it"),
        ("c.tar.gz", "unpack it"),
        ("c.parquet", "JSON lines"),
        ("c.arrow", "JSON lines"),
        ("c.json", "JSON lines"),
        ("c.csv", "JSON lines"),
        ("c.html", "--also .html"),
        ("c", ".txt"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_cure(told, name, cure):
    """inputs A3, parallel A7, user 6."""
    Path(name).write_text(TEXT)
    refused(told(name), name, cure)


def test_what_is_no_text_is_refused_whatever_it_is_called(told):
    """inputs A3: by magic bytes, byte order marks, NUL bytes and what is no UTF-8."""
    table = pa.table({"text": [TEXT]})
    pq.write_table(table, "parquet")
    with zipfile.ZipFile("zip", "w") as packed:
        packed.writestr("a.txt", TEXT)
    contents = {
        "gzip": gzip.compress(TEXT.encode()),
        "zstd": b"\x28\xb5\x2f\xfd" + TEXT.encode(),
        "Parquet": Path("parquet").read_bytes(),
        "Arrow": b"ARROW1\0\0" + TEXT.encode(),
        "zip": Path("zip").read_bytes(),
        "UTF-16": TEXT.encode("utf-16"),
        "UTF-32": TEXT.encode("utf-32"),
        "NUL": b"a\0b" * 500,
        "UTF-8": ("Größe " * 200).encode("latin-1"),
    }
    for what, content in contents.items():
        for name in ("c.txt", "c.jsonl"):
            Path(name).write_bytes(content)
            refused(told(name), name, what if name == "c.txt" else "")


def test_the_case_of_an_ending_does_not_matter(told):
    """inputs A3: c.JSONL is c.jsonl, and .ndjson is its other name."""
    Path("c.jsonl").write_text(LINES)
    digest = told("c.jsonl", out="plain")[1]
    for name in ("c.JSONL", "c.ndjson", "c.Jsonl"):
        Path(name).write_text(LINES)
        assert told(name, out=name + "-out")[:2] == (0, digest)


@pytest.fixture
def linked(tmp_path):
    """A folder with a linked folder and, beside it, one with a real folder in its place."""
    for name in ("real", "linked", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.txt").write_text(TEXT)
    (tmp_path / "elsewhere" / "b.txt").rename(tmp_path / "elsewhere" / "a.txt")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "real" / "sub")
    (tmp_path / "linked" / "sub").symlink_to("../elsewhere")
    return tmp_path


@pytest.mark.usefixtures("linked")
def test_a_linked_folder_is_read_as_a_real_one(told):
    """inputs A4."""
    real = told("real", out="one")[1]
    assert told("linked", out="two")[:2] == (0, real)


def test_links_in_a_circle_end_and_no_folder_is_read_twice(told, linked):
    """inputs A4: what a link points to inside the source is read already."""
    digest = told("real", out="one")[1]
    for name, target in (("up", ".."), ("again", "sub"), ("self", "self"), ("gone", "nowhere")):
        (linked / "real" / name).symlink_to(target)
    shutil.rmtree(linked / "elsewhere")
    (linked / "linked" / "sub").unlink()
    (linked / "linked" / "sub").symlink_to("../real/sub")
    code, _, said = told("real/sub", out="sub")
    assert code == 0
    assert told("linked", out="two")[:2] == (0, digest)
    (linked / "real" / "up").unlink()
    code, found, said = told("real", out="three")
    assert (code, found) == (0, digest)
    assert "again (read already" in said
    assert "gone (a link to nothing)" in said


def test_it_is_said_what_was_read_and_what_was_left_out_and_why(told):
    """inputs A4, user 6: files, bytes, and the names of what is not in the dataset."""
    folder = Path("text")
    folder.mkdir()
    (folder / "b.txt").write_text(TEXT)
    (folder / "B.TXT").write_text(TEXT)
    for name in ("a.json", "c.html", "d.png", ".hidden.txt"):
        (folder / name).write_text("x")
    os.mkfifo(folder / "pipe.txt")
    code, _, said = told("text")
    assert code == 0
    assert f"reading 2 files, {2 * len(TEXT):,} bytes; left out 5: " in said
    for part in ("a.json (.json is not read)", "pipe.txt (no regular file)", "hidden"):
        assert part in said


def test_other_endings_are_read_when_they_are_asked_for(told):
    """user 6, inputs A4: --also."""
    folder = Path("c2")
    folder.mkdir()
    (folder / "a.c").write_text(TEXT)
    (folder / "b.html").write_text(TEXT)
    refused(told("c2"), "no text in c2", "a.c (.c is not read)", "--also .c")
    code, _, said = told("c2", "--also", ".c", "--also", "HTML")
    assert code == 0
    assert f"reading 2 files, {2 * len(TEXT):,} bytes" in said
    refused(told("c2", "--also", ".parquet", out="o2"), "--also .parquet", "JSON lines")


@pytest.fixture
def public_place():
    """A folder that is not below one of this user's."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_volume_s_lost_and_found_is_left_out_of_a_source(told, public_place):
    """inputs B4: it is never looked into, so that nobody needs to be allowed to."""
    (public_place / "a.txt").write_text(TEXT)
    digest = told(public_place, out="before")[1]
    (public_place / "lost+found").mkdir(mode=0o700)
    (public_place / "lost+found" / "b.txt").write_text(TEXT)
    code, found, said = told(public_place, out="after")
    assert (code, found) == (0, digest)
    assert "lost+found (the volume's own)" in said


def test_lone_surrogates_become_replacement_characters_and_are_counted(told):
    """inputs B3: JSON allows them, UTF-8 does not."""
    Path("a.jsonl").write_text('{"text": "broken \\ud83d emoji \\ude00\\ud83d\\ude00"}\n' + LINES)
    Path("b.jsonl").write_text('{"text": "broken \\ufffd emoji \\ufffd\\ud83d\\ude00"}\n' + LINES)
    code, digest, said = told("a.jsonl", out="one")
    assert (code, digest) == (0, told("b.jsonl", out="two")[1])
    assert "2 characters that are no Unicode" in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": null}', 'found "text" with null'),
        ('{"text": 5}', 'found "text" with a number'),
        ('{"content": "a"}', 'found only "content"'),
        ('{"text": "cut o', "found no JSON"),
        ('["text"]', "found a list"),
        (b'{"text": "\xff"}', "found no UTF-8"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_says_what_is_there_and_what_to_do(told, line, says):
    """inputs B3, user 4 (data): the line, what stands there, --text-key, --skip-bad-lines."""
    Path("a.jsonl").write_bytes(
        LINES.encode() + (line if isinstance(line, bytes) else line.encode()) + b"\n"
    )
    place = 'a.jsonl, line 41: expected a JSON object with a string "text", '
    said = refused(told("a.jsonl"), place, says, "--skip-bad-lines")
    assert ("--text-key content" in said) == ("content" in says)


def test_the_key_of_the_text_is_the_user_s_to_name(told):
    """inputs B3: --text-key; the cure of a damaged shard names it too."""
    Path("a.jsonl").write_text(LINES)
    Path("b.jsonl").write_text(LINES.replace('"text"', '"content"'))
    code, digest, _ = told("b.jsonl", "--text-key", "content", out="two")
    assert (code, digest) == (0, told("a.jsonl", out="one")[1])
    assert "--text-key content" in Manifest.load(Path("two")).build_command(Path("two"))
    refused(told("a.jsonl", "--text-key", "content", out="two"), 'found only "text"')


def test_bad_lines_are_left_out_up_to_a_number_and_counted(told):
    """inputs B3: --skip-bad-lines."""
    Path("good.jsonl").write_text(LINES)
    digest = told("good.jsonl", out="good")[1]
    Path("bad.jsonl").write_text("{\n" + LINES + '{"text": null}\n')
    code, found, said = told("bad.jsonl", "--skip-bad-lines", "2", out="two")
    assert (code, found) == (0, digest)
    assert "left out 2 bad lines, the first of them bad.jsonl, line 1: " in said
    refused(told("bad.jsonl", "--skip-bad-lines", "1", out="one"), "line 42", "2 bad lines")


def test_a_very_long_line_is_told_and_one_beyond_all_measure_is_a_bad_one(tmp_path):
    """parallel A11: a line is held whole, several times over, while it is taken apart."""
    source = tmp_path / "a.jsonl"
    source.write_text(lines("x" * 1000) + LINES + lines("y" * 100_000) + LINES)
    notes = []
    limits = {"told_line_bytes": 500, "max_line_bytes": 2000}
    with pytest.raises(DataError, match=r"line 42: .* found more than 2,000 bytes"):
        build(str(source), tmp_path / "o", 16, reading=Reading(**limits))
    reading = Reading(skip_bad_lines=1, **limits)
    manifest = build(str(source), tmp_path / "o", 16, reading=reading, tell=notes.append)
    assert f"{source}, line 1 has 1,013 bytes; a line is held in memory whole" in notes
    assert "left out 1 bad line, " in notes[-1]
    source.write_text(lines("x" * 1000) + LINES + LINES)
    assert build(str(source), tmp_path / "p", 16).digest == manifest.digest


@pytest.mark.parametrize("text", ["", '{"text": ""}\n\n'])
def test_a_source_of_nothing_is_an_error_that_names_it(told, text):
    """cases B083: empty, or of empty texts only."""
    Path("a.jsonl").write_text(text)
    refused(told("a.jsonl"), "a.jsonl is too short: its text has 0 tokens")
