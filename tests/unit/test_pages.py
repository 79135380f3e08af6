"""Memory that one process shows others: found by who was told where it is, and by nobody else."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from remesh.parallel.pages.own_pages import OwnPages
from remesh.parallel.pages.shared_pages import SharedPages
from remesh.parallel.plan.errors import GroupError


def mappings():
    """Rights of all mappings of such memory in this process, in the order of addresses."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line.split()[1] for line in lines if "remesh pages" in line]


def alone():
    """What a rank alone agrees upon with itself."""
    return SharedPages.form(lambda said: [said])


def test_what_is_written_is_read_where_it_lies():
    own, shared = OwnPages(), alone()
    buffers = [own.take(100, torch.float32), own.take(1 << 25, torch.bfloat16)]  # in two files
    for number, buffer in enumerate(buffers, start=1):
        assert not buffer[:100].any()
        buffer[:100] = number
        place = own.place(buffer)
        assert shared.view(0, place, 100, buffer.dtype).tolist() == [number] * 100
        buffer[7] = 0
        assert shared.view(0, place, 8, buffer.dtype).tolist() == [number] * 7 + [0]


def test_others_may_only_read_it_and_give_it_up_with_the_mesh():
    gc.collect()
    before = len(mappings())
    own, shared = OwnPages(), alone()
    place = own.place(own.take(1, torch.float32))
    shared.view(0, place, 1, torch.float32)
    assert sorted(mappings()[before:]) == ["r--s", "rw-s"]
    shared.close()
    assert len(mappings()) == before + 1
    del own
    gc.collect()
    assert len(mappings()) == before


def test_it_has_no_name_that_could_stay():
    own = OwnPages()
    place = own.place(own.take(1, torch.float32))
    assert Path(f"/proc/self/fd/{place.descriptor}").readlink() == Path(
        "/memfd:remesh pages (deleted)"
    )


def test_other_memory_is_not_taken_for_it():
    own, shared = OwnPages(), alone()
    place = own.place(own.take(1, torch.float32))
    with pytest.raises(GroupError, match="is not the memory that rank 0 has told of"):
        shared.view(0, replace(place, key=place.key + 1), 1, torch.float32)
    with pytest.raises(GroupError, match="the memory of rank 0 cannot be read"):
        shared.view(0, replace(place, descriptor=9999), 1, torch.float32)


def test_a_file_that_has_taken_the_place_of_another_is_mapped_anew():
    shared, old = alone(), OwnPages()
    place = old.place(old.take(1, torch.float32))
    shared.view(0, place, 1, torch.float32)
    del old
    new = OwnPages()
    buffer = new.take(1, torch.float32).fill_(3)
    assert new.place(buffer).descriptor == place.descriptor
    assert shared.view(0, new.place(buffer), 1, torch.float32).tolist() == [3]


@pytest.mark.parametrize("spoilt", [b"\xff" * 8, (1 << 40).to_bytes(8, "little")])
def test_all_send_messages_where_one_cannot_be_read(spoilt):
    """A rank that has no such memory, and one in whose place here is another process."""

    def gather(said):
        return [said, said[:8] + spoilt + said[16:] if len(said) > 1 else said]

    assert SharedPages.form(gather) is None


def test_a_process_of_another_host_is_not_looked_for_here():
    """One with its id may be here too, even with such memory."""

    def gather(said):
        return [said, b"anywhere" + said[8:] if len(said) > 1 else said]

    assert SharedPages.form(gather) is None


def test_all_send_messages_where_another_one_cannot_read():
    assert SharedPages.form(lambda said: [said, said if len(said) > 1 else b"\0"]) is None
