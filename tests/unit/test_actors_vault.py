import errno
import os
import signal
import subprocess
import sys

import pytest
from control_values import held
from counted import calls_made

from remesh.actors.node.leftovers import folder_name, sweep
from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.slot_memory import CONTROL_BYTES, SlotMemory
from remesh.actors.vault.vault_memory import NoRoomError, VaultMemory
from remesh.orchestrator.vault.shelf_words import Claim, Grant, StableSaid
from remesh.orchestrator.vault.vault_words import SlotSpoilt, SlotState
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
    with pytest.raises(BlockingIOError):  # it is offered to nobody yet
        SlotMemory.open(slot.path)
    memory.offer(slot)
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


PART = whole("w", (100,), "float32")


class Tenant:
    """Has the slots of a lease mapped, as a worker would, and keeps what it is told."""

    def __init__(self, shelf, generation, from_step=0, **more):
        self.heard = []
        self.slots = []
        self.start, header = lay_out(CheckpointRef(step=2**40, generation=generation), [PART])
        asked = Claim(
            generation=generation,
            held=HELD,
            size_bytes=header.size_bytes,
            from_step=from_step,
            **more,
        )
        self.shelf = shelf
        self.lease = shelf.claim(asked, self)

    def hear(self, do):
        self.heard.append(do)
        if isinstance(do, Grant):
            self.paths = [self.shelf.memory_of(slot).path for slot in do.slots]
            self.slots = [SlotMemory.open(path) for path in self.paths]

    def write(self, number, step):
        slot = self.slots[number]
        slot.state, slot.step = SlotState.WRITING, step
        slot.shard[: len(self.start)] = self.start
        slot.shard[len(self.start) :] = bytes([step]) * (len(slot.shard) - len(self.start))
        slot.state = SlotState.COPIED

    def copy(self, number, step):
        self.write(number, step)
        self.shelf.copied(self.lease, number)

    def leave(self):
        for slot in self.slots:
            slot.close()
        self.shelf.hang_up(self.lease)


HELD = held(0, dp=2, shard_size=2)
OVER = 100  # a generation after all of these


def told(shelf, generation=OVER, limit_s=0.0):
    return sorted((one.generation, one.step) for one in shelf.told(generation, limit_s))


def read(shelf, generation, step):
    found = shelf.find(generation, step, HELD)
    return None if found is None else bytes(found.memory.shard[found.proof.start_bytes :])


def test_what_a_worker_has_left_is_told_and_read_from_where_it_lies(memory):
    shelf = KeptShelf(memory)
    tenant = Tenant(shelf, 1)
    tenant.copy(0, 4)
    tenant.copy(1, 5)
    tenant.slots[0].state = SlotState.WRITING
    tenant.leave()
    used = memory.used_bytes
    assert told(shelf) == [(1, 5)]
    assert memory.used_bytes == used
    assert read(shelf, 1, 5) == bytes([5]) * 400
    assert read(shelf, 1, 4) is None
    assert read(shelf, 2, 5) is None


def test_what_is_no_snapshot_is_not_sealed(memory):
    shelf = KeptShelf(memory)
    tenant = Tenant(shelf, 1)
    tenant.slots[0].state = SlotState.COPIED
    shelf.copied(tenant.lease, 0)
    assert isinstance(tenant.heard[-1].word, SlotSpoilt)
    tenant.slots[1].state = SlotState.COPIED
    tenant.leave()
    assert told(shelf) == []


def test_of_one_layout_the_header_is_taken_apart_once(memory):
    """That costs a vault more than to hash a few MB, beside ranks that train."""
    tenant = Tenant(KeptShelf(memory), 1)
    tenant.copy(0, 4)
    made = calls_made(lambda: [tenant.copy(number, 5 + number) for number in (1, 0)])
    assert made["seal"] == 2
    assert made["header_of"] == 0
    tenant.leave()


def test_a_slot_that_a_process_may_have_mapped_is_not_handed_on(memory):
    """M33: whatever has become of its line. The lock is the proof."""
    shelf = KeptShelf(memory)
    zombie = Tenant(shelf, 1)
    zombie.copy(0, 3)
    shelf.hang_up(zombie.lease)
    other = Tenant(shelf, 2, from_step=2)
    shelf.say(StableSaid(lease=other.lease))
    inodes = {path.stat().st_ino for path in zombie.paths}
    assert not inodes & {path.stat().st_ino for path in other.paths}
    for slot in zombie.slots:
        slot.close()
    third = Tenant(shelf, 3, from_step=2)
    assert {path.stat().st_ino for path in third.paths} == inodes


def test_a_slot_that_was_not_mapped_in_time_cannot_be_any_more(memory):
    """A worker that was frozen as it was about to map it finds another one's slot under no name."""
    shelf = KeptShelf(memory)
    late = Tenant(shelf, 1)
    for slot in late.slots:
        slot.close()
    assert told(shelf, 1) == []
    with pytest.raises(BlockingIOError):
        SlotMemory.open(late.paths[0])
    shelf.hang_up(late.lease)
    other = Tenant(shelf, 2)
    with pytest.raises(FileNotFoundError):
        SlotMemory.open(late.paths[0])
    assert other.slots


def test_a_snapshot_that_a_zombie_has_mapped_is_told_of_as_a_copy(memory):
    shelf = KeptShelf(memory)
    zombie = Tenant(shelf, 1)
    zombie.copy(0, 3)
    zombie.copy(1, 4)
    assert told(shelf, 1) == [(1, 3), (1, 4)]
    for number, step in ((0, 7), (1, 8), (2, 9)):
        zombie.write(number, step)
        shelf.copied(zombie.lease, number)
    assert told(shelf, 1) == [(1, 3), (1, 4)]
    assert read(shelf, 1, 3) == bytes([3]) * 400
    assert read(shelf, 1, 4) == bytes([4]) * 400


def test_a_copy_of_what_a_zombie_has_changed_before_is_not_told_of(memory):
    shelf = KeptShelf(memory)
    zombie = Tenant(shelf, 1)
    zombie.copy(0, 3)
    zombie.copy(1, 4)
    zombie.slots[0].shard[-1] ^= 1
    assert told(shelf, 1) == [(1, 4)]


def test_without_room_for_a_copy_it_is_not_told_of(tmp_path):
    memory = VaultMemory(tmp_path / "small", limit_bytes=3 * (CONTROL_BYTES + SIZE_BYTES))
    memory.open()
    shelf = KeptShelf(memory)
    zombie = Tenant(shelf, 1)
    zombie.copy(0, 3)
    memory._limit_bytes = memory.used_bytes
    assert told(shelf, 1) == []
    memory.close()
