"""A rank that was frozen before a fence and goes on after it, at any moment of its writing."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from waiting import PATIENCE_S, soon
from zombie_writer import HELD, NUM_SEALED

from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.slot_reader import reading
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.vault.shelf import Shelf
from remesh.parallel.plan.errors import CheckpointError

TOKEN = "0123456789abcdef" * 2
TIMERS = Timers(patience_s=PATIENCE_S)
ROUNDS = int(os.environ.get("REMESH_ZOMBIES", "20"))
LIMIT_S = 0.02


class TrustingShelf(Shelf):
    """Without the rule: it tells of what a mapper may write to, as if it were gone."""

    def kept(self, generation):
        for lease in self.leases.values():
            lease.rescued, lease.haunted = True, set()
        return super().kept(generation)

    def watched(self):
        return []

    def _is_waiting(self):
        return False


class ZombieVault:
    def __init__(self, folder, machine):
        self.memory = VaultMemory(folder)
        self.memory.open()
        self.shelf = KeptShelf(self.memory)
        self.shelf._machine = machine
        self.server = VaultServer.open("127.0.0.1", self.shelf, token=TOKEN, timers=TIMERS)

    def read(self, kept):
        """All of a slot, proven as a restore proves it; None if it cannot be."""
        try:
            return self._read(kept)
        except (OSError, CheckpointError):
            return None

    def _read(self, kept):
        slot = VaultSlot(vault="", held=HELD, generation=kept.generation, step=kept.step)
        with reading(self.server.address, TOKEN, slot, TIMERS) as reader:
            header = reader.header()
            (part,) = header.parts
            data = bytearray(part.size_bytes)
            reader.read_into(part.start, [memoryview(data)])
            if not part.has_chunks(0, memoryview(data)):
                raise CheckpointError("it is another than when it was sealed")
            return bytes(data)

    def newest_step(self):
        """Of all that anybody has written into any memory that was ever a slot of this vault."""
        return max(memory.step for memory in [*self.shelf._slots.values()])

    def close(self):
        self.server.close()
        self.memory.close()


@pytest.fixture
def make_vault(tmp_path):
    made = []

    def make(machine):
        made.append(ZombieVault(tmp_path / f"{len(made)}", machine))
        return made[-1]

    yield make
    for vault in made:
        vault.close()


@contextmanager
def zombie(vault, generation):
    """It has sealed some snapshots, and writes on."""
    writer = Path(__file__).with_name("zombie_writer.py")
    words = [sys.executable, str(writer), vault.server.address, TOKEN, str(generation)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def stale_after(vault, chance):
    """How many slots were told of while it was frozen, and how many are not as they were then."""
    with zombie(vault, generation=1) as process:
        for _ in range(chance.randrange(20_000)):
            pass  # at some moment of its writing
        process.send_signal(signal.SIGSTOP)
        kept = vault.shelf.told(1, LIMIT_S)
        before = [vault.read(one) for one in kept]
        at_step = vault.newest_step()
        process.send_signal(signal.SIGCONT)
        assert soon(lambda: vault.newest_step() > at_step + 2 * NUM_SEALED)
        after = [vault.read(one) for one in kept]
    stale = sum(data is None or data != told for data, told in zip(after, before, strict=True))
    return stale, len(kept)


def test_a_zombie_changes_nothing_of_what_was_told(make_vault):
    """Each time it is frozen at another moment, told of, and goes on to write all of its slots."""
    chance = Random(1)
    found = [stale_after(make_vault(Shelf()), chance) for _ in range(ROUNDS)]
    assert sum(stale for stale, _ in found) == 0
    assert sum(told for _, told in found) >= ROUNDS


def test_the_same_zombie_changes_it_where_a_vault_trusts_that_it_is_gone(make_vault):
    stale, told = stale_after(make_vault(TrustingShelf()), Random(1))
    assert stale == told > 0


def test_a_zombie_that_dies_gives_its_memory_back(make_vault):
    vault = make_vault(Shelf())
    with zombie(vault, generation=1) as process:
        process.send_signal(signal.SIGSTOP)
        before = vault.memory.used_bytes
        assert vault.shelf.told(1, LIMIT_S)
        assert vault.memory.used_bytes > before
    assert soon(lambda: not vault.shelf._machine.watched())
    vault.memory.trim()
    assert vault.memory.used_bytes <= before
