import errno
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
from control_values import held

from remesh.actors.node.leftovers import folder_name, sweep
from remesh.actors.vault.shelf import Claim, Shelf
from remesh.actors.vault.slot_memory import CONTROL_BYTES, SlotMemory, SlotState
from remesh.actors.vault.vault_memory import NoRoomError, VaultMemory
from remesh.actors.worker.snapshot_pace import Pace
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.headers import lay_out
from remesh.parallel.state.root_manifest import CheckpointRef

SIZE_BYTES = 5000


@pytest.fixture
def memory(tmp_path):
    memory = VaultMemory(tmp_path / folder_name("run", "node"))
    memory.open()
    yield memory
    memory.close()


def test_a_slot_is_one_memory_for_two_processes(memory):
    slot = memory.take(SIZE_BYTES)
    other = SlotMemory.open(slot.path)
    other.state, other.step = SlotState.COPIED, 7
    other.shard[:3] = b"abc"
    assert (slot.state, slot.step, bytes(slot.shard[:3])) == (SlotState.COPIED, 7, b"abc")
    assert len(other.shard) == SIZE_BYTES
    assert slot.path.stat().st_mode & 0o777 == 0o600
    assert memory.folder.stat().st_mode & 0o777 == 0o700


def test_memory_is_used_again_and_given_back(memory):
    slot = memory.take(SIZE_BYTES)
    memory.give_back(slot)
    assert memory.take(SIZE_BYTES) is slot
    memory.give_back(slot)
    other = memory.take(2 * SIZE_BYTES)
    assert not slot.path.exists()
    assert memory.used_bytes == 2 * SIZE_BYTES + CONTROL_BYTES
    memory.give_back(other)
    memory.trim()
    assert memory.used_bytes == 0


def test_a_bound_and_full_memory_are_refused_with_the_cure(tmp_path):
    bounded = VaultMemory(tmp_path / "a", limit_bytes=SIZE_BYTES)
    full = VaultMemory(tmp_path / "b", free_bytes=lambda _: 100)
    for memory, cure in ((bounded, "vault_bytes"), (full, "snapshot_every")):
        memory.open()
        with pytest.raises(NoRoomError, match=cure):
            memory.take(SIZE_BYTES)
        memory.close()


def test_a_disk_that_turns_out_to_be_full_leaves_no_file(tmp_path):
    memory = VaultMemory(tmp_path / "a", free_bytes=lambda _: 2**62)
    memory.open()
    with pytest.raises(NoRoomError) as refused:
        memory.take(2**55)
    assert refused.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert [path.name for path in memory.folder.iterdir()] == ["lock"]
    assert memory.used_bytes == 0
    memory.close()


def test_what_a_dead_vault_has_left_is_removed_and_a_living_ones_is_not(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from remesh.actors.vault.vault_memory import VaultMemory\n"
        "memory = VaultMemory(Path(sys.argv[1])); memory.open(); memory.take(5000)\n"
        "print(flush=True); time.sleep(60)"
    )
    folder = tmp_path / folder_name("run", "node")
    vault = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    with vault:
        vault.stdout.readline()
        sweep("run", tmp_path)
        assert len(list(folder.iterdir())) == 2
        with pytest.raises(BlockingIOError):
            VaultMemory(folder).open()
        os.kill(vault.pid, signal.SIGKILL)
    sweep("other", tmp_path)
    assert folder.exists()
    again = VaultMemory(folder)
    again.open()
    assert [path.name for path in folder.iterdir()] == ["lock"]
    again.close()
    assert not folder.exists()


def claim(generation, rank=0, from_step=0, **more):
    start, header = lay_out(CheckpointRef(step=2**40, generation=generation), [PART])
    part = held(rank, dp=2, shard_size=2)
    made = Claim(
        generation=generation, held=part, size_bytes=header.size_bytes, from_step=from_step, **more
    )
    return made, start


PART = whole("w", (100,), "float32")


def fill(shelf, lease, number, step):
    slot = lease.slots[number]
    start = claim(lease.claim.generation)[1]
    slot.state, slot.step = SlotState.WRITING, step
    slot.shard[: len(start)] = start
    slot.shard[len(start) :] = bytes([step]) * (len(slot.shard) - len(start))
    slot.state = SlotState.COPIED
    return shelf.seal(lease, number)


def steps(shelf, generation=0):
    return sorted((one.generation, one.step) for one in shelf.told(generation, 0.0))


def test_a_sealed_slot_counts_until_it_is_written_over(memory):
    shelf = Shelf(memory)
    lease = shelf.lease(claim(1)[0])
    fill(shelf, lease, 0, 4)
    fill(shelf, lease, 1, 5)
    assert steps(shelf) == [(1, 4), (1, 5)]
    lease.slots[0].state = SlotState.WRITING
    assert steps(shelf) == [(1, 5)]
    found = shelf.find(1, 5, lease.claim.held)
    assert found.is_there
    assert shelf.find(1, 4, lease.claim.held) is None
    assert shelf.find(2, 5, lease.claim.held) is None


def test_what_is_no_snapshot_is_not_sealed(memory):
    shelf = Shelf(memory)
    lease = shelf.lease(claim(1)[0])
    lease.slots[0].state = SlotState.COPIED
    with pytest.raises(CheckpointError):
        shelf.seal(lease, 0)
    shelf.end(lease)
    assert list(shelf.seal_copied(lease)) == []
    assert steps(shelf) == []


def test_earlier_generations_stay_until_a_later_one_is_stable(memory):
    shelf = Shelf(memory)
    first = shelf.lease(claim(1)[0])
    for number, step in enumerate((3, 4, 5)):
        fill(shelf, first, number, step)
    shelf.end(first)
    second = shelf.lease(claim(2, from_step=4)[0])
    assert steps(shelf) == [(1, 3), (1, 4)]
    fill(shelf, second, 0, 5)
    assert steps(shelf) == [(1, 3), (1, 4), (2, 5)]
    shelf.stable(2)
    assert steps(shelf) == [(2, 5)]
    assert memory.used_bytes == 3 * (second.slots[0].size_bytes + CONTROL_BYTES)


def test_a_slot_whose_mapper_may_live_is_not_handed_on(memory):
    shelf = Shelf(memory)
    zombie = shelf.lease(claim(1)[0])
    fill(shelf, zombie, 0, 3)
    other = shelf.lease(claim(2, from_step=2)[0])
    shelf.stable(2)
    paths = {slot.path for slot in zombie.slots}
    assert not paths & {slot.path for slot in other.slots}
    shelf.end(zombie)
    third = shelf.lease(claim(3)[0])
    assert {slot.path for slot in third.slots} == paths


def test_what_was_told_of_is_not_written_to_any_more(memory):
    shelf = Shelf(memory)
    lease = shelf.lease(claim(3, guest=True)[0])
    fill(shelf, lease, 0, 7)
    assert shelf.may_write(lease)
    assert steps(shelf, 4) == [(3, 7)]
    assert not shelf.may_write(lease)
    shelf.end(lease)
    shelf.stable(4)
    assert steps(shelf, 4) == [(3, 7)]
    with pytest.raises(NoRoomError, match="over"):
        shelf.lease(claim(4)[0])
    assert shelf.may_write(shelf.lease(claim(5, from_step=7, guest=True)[0]))
    shelf.stable(5)
    assert steps(shelf, 4) == []


def drive(pace, *, steps, copy_s, busy_s):
    """Steps of 0.1 s, longer by `busy_s` beside a snapshot; the steps of which one was taken."""
    now_s, busy, taken = 0.0, False, []
    pace.begin(0)
    for step in range(1, steps + 1):
        pace.mark(now_s, busy=busy)
        now_s += 0.1 + (busy_s if busy else 0.0)
        busy = False
        if pace.is_due(step):
            pace.note(step, copy_s)
            now_s += copy_s
            taken.append(step)
            busy = True
    return taken


def test_the_interval_follows_from_what_copies_cost():
    taken = drive(Pace("auto"), steps=200, copy_s=0.0205, busy_s=0.0)
    assert taken[0] == 1
    assert [after - before for before, after in pairwise(taken)][-4:] == [21] * 4


def test_the_interval_follows_from_how_much_longer_steps_are_beside_them():
    taken = drive(Pace("auto"), steps=200, copy_s=0.0001, busy_s=0.0205)
    assert [after - before for before, after in pairwise(taken)][-4:] == [21] * 4


def test_what_costs_nothing_is_taken_of_every_step():
    taken = drive(Pace("auto"), steps=60, copy_s=0.0005, busy_s=0.0)
    assert taken[-20:] == list(range(41, 61))


def test_a_number_of_steps_is_kept_to():
    pace = Pace(5)
    assert [step for step in range(1, 16) if pace.is_due(step)] == [5, 10, 15]
    assert not any(Pace(0).is_due(step) for step in range(10))
