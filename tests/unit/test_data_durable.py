import pytest

from remesh.data.durable import durable_file


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    with durable_file(tmp_path / "x") as file:
        file.write(b"all of it")
        assert names(tmp_path) == ["x.partial"]
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"all of it"


def interrupted_write(path):
    with durable_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_what_was_there_before(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        interrupted_write(tmp_path / "x")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_full_disk_leaves_what_was_there_before(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "x.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"), durable_file(tmp_path / "x") as file:
        file.write(b"new")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"
