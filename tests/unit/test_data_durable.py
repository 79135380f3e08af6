import pytest

from remesh.data.durable import Disk, appearing, durable_file


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


def create(path, temporary, data=b"new", **options):
    with appearing(path, temporary, replaces=False, **options) as file:
        file.write(data)


def test_what_must_not_replace_leaves_what_is_there_and_nothing_of_its_own(tmp_path):
    create(tmp_path / "x", tmp_path / "one", b"one", mode=0o600)
    with pytest.raises(FileExistsError):
        create(tmp_path / "x", tmp_path / "two")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"one"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


class LostAnswer(Disk):
    """Like NFS when the answer to a link is lost: the request is made again, and refused."""

    def link(self, source, target):
        target.hardlink_to(source)
        super().link(source, target)


def test_who_made_a_link_knows_it_though_the_answer_was_lost(tmp_path):
    create(tmp_path / "x", tmp_path / "one", disk=LostAnswer())
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"new"
