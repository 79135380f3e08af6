"""Vaults and workers prove to each other that they are of one run, and prove all that they say."""

import os
import socket
import threading
from contextlib import closing, suppress

import pytest
from waiting import PATIENCE_S

from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.replica import Buddy, Replica
from remesh.actors.vault.slot_memory import SlotMemory
from remesh.actors.vault.slot_reader import reading
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.actors.vault.wire import _PIECE_BYTES, VaultError, _sealed_pieces
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.vault.shelf_words import Claim
from remesh.orchestrator.vault.vault_words import SlotState
from remesh.parallel.plan.cut import held_by
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.headers import lay_out
from remesh.parallel.state.root_manifest import CheckpointRef

HOST = "127.0.0.1"
TOKEN = "0123456789abcdef" * 2
TIMERS = Timers(patience_s=PATIENCE_S)
HELD = held_by(Layout(dp=2), 2, 0)
SLOT = VaultSlot(vault="node", held=HELD, generation=1, step=4)


class Tenant:
    """Keeps what it was granted."""

    def hear(self, do):
        self.slots = do.slots


class ProvenVault:
    """A vault with one sealed snapshot."""

    def __init__(self, folder):
        memory = VaultMemory(folder)
        memory.open()
        shelf = KeptShelf(memory)
        start, header = lay_out(
            CheckpointRef(step=2**40, generation=1), [whole("w", (5000,), "float32")]
        )
        claim = Claim(generation=1, held=HELD, size_bytes=header.size_bytes, from_step=0)
        self.claim = claim
        tenant = Tenant()
        lease = shelf.claim(claim, tenant)
        slot = SlotMemory.open(shelf.memory_of(tenant.slots[0]).path)
        slot.state, slot.step = SlotState.WRITING, 4
        slot.shard[: len(start)] = start
        slot.shard[len(start) :] = os.urandom(len(slot.shard) - len(start))
        slot.state = SlotState.COPIED
        slot.close()
        shelf.hang_up(lease)
        self.slot = shelf.memory_of(tenant.slots[0])
        self.bytes = bytes(self.slot.shard)
        self.memory = memory
        self.server = VaultServer.open(HOST, shelf, token=TOKEN, timers=TIMERS)
        self.address = self.server.address

    def close(self):
        self.server.close()
        self.memory.close()


@pytest.fixture
def vault(tmp_path):
    made = ProvenVault(tmp_path / "vault")
    yield made
    made.close()


class Relay:
    """Stands between a client and a vault: hears all, and may change the byte at `place`."""

    def __init__(self, address, place=None):
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._place = place
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.heard = {"asked": b"", "told": b""}
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection((self._host, self._port), timeout=PATIENCE_S)
            upward = threading.Thread(target=self._pass, args=("asked", near, far), daemon=True)
            upward.start()
            self._pass("told", far, near)
            upward.join()

    def _pass(self, way, source, target):
        with suppress(OSError), source, target:
            while data := bytearray(source.recv(1 << 16)):
                at = None if self._place is None else self._place - len(self.heard[way])
                if way == "told" and at is not None and 0 <= at < len(data):
                    data[at] ^= 16
                self.heard[way] += data
                target.sendall(data)

    def close(self):
        self._listener.close()


def read(address, token=TOKEN, timers=TIMERS, *, by_file=False):
    with reading(address, token, SLOT, timers, by_file=by_file) as reader:
        header = reader.header()
        start = header.parts[0].start
        data = bytearray(header.size_bytes - start)
        views = [memoryview(data)[:5], memoryview(data)[5:]]
        assert reader.read_into(start, views) == len(data)
        return bytes(data)


def test_the_token_is_never_said(vault):
    """security A5"""
    with closing(Relay(vault.address)) as relay:
        data = read(relay.address)
    assert vault.bytes.endswith(data)
    heard = relay.heard["asked"] + relay.heard["told"]
    for known in (TOKEN.encode(), bytes.fromhex(TOKEN)):
        assert known not in heard


def test_who_has_another_token_is_told_so_and_reads_nothing(vault):
    """security A5"""
    with pytest.raises(ConnectionError, match="secret"):
        read(vault.address, token="f" * 32)


def test_a_changed_byte_anywhere_in_what_a_vault_says_is_noticed(vault):
    """security A5: also where no hash of the snapshot sees it."""
    with closing(Relay(vault.address)) as relay:
        read(relay.address)
    size = len(relay.heard["told"])
    assert size > 20_000
    hasty = Timers(patience_s=0.05)  # a changed length leaves it waiting
    for place in (0, 20, 40, 64, 70, 90, 400, 700, size // 2, size - 17, size - 1):
        with (
            closing(Relay(vault.address, place)) as liar,
            pytest.raises((OSError, CheckpointError)),
        ):
            read(liar.address, timers=hasty)


def test_a_forged_vault_is_not_believed(vault):
    """security A5: it repeats what a true one has said to somebody else."""
    with closing(Relay(vault.address)) as relay:
        read(relay.address)

    def lie(listener):
        with suppress(OSError):
            near, _ = listener.accept()
            with near:
                near.sendall(relay.heard["told"])
                near.recv(4096)

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=lie, args=(listener,), daemon=True).start()
        with pytest.raises(ConnectionError, match="secret"):
            read(f"{HOST}:{listener.getsockname()[1]}")


def test_on_the_same_node_a_snapshot_is_read_out_of_the_memory_that_it_lies_in(vault):
    """speed 6: it went through a connection, and was hashed on both ends of it."""
    with closing(Relay(vault.address)) as relay:
        assert vault.bytes.endswith(read(relay.address, by_file=True))
    assert len(relay.heard["told"]) < 2_000 < len(vault.bytes)


def test_a_file_of_that_name_that_is_another_is_not_read(vault):
    """It may lie on another node, or hold another snapshot by now."""
    (path,) = [p for p in vault.memory.folder.iterdir() if p.name == vault.slot.path.name]
    path.rename(path.with_name("away"))
    path.write_bytes(bytes(path.with_name("away").stat().st_size))
    with closing(Relay(vault.address)) as relay:
        assert vault.bytes.endswith(read(relay.address, by_file=True))
    assert len(relay.heard["told"]) > len(vault.bytes)
    path.unlink()
    assert vault.bytes.endswith(read(vault.address, by_file=True))
    path.symlink_to("away")
    with closing(Relay(vault.address)) as relay:
        assert vault.bytes.endswith(read(relay.address, by_file=True))
    assert len(relay.heard["told"]) > len(vault.bytes)


def test_whoever_is_freed_reads_no_further_out_of_a_file(vault):
    with reading(vault.address, TOKEN, SLOT, TIMERS) as reader:
        header = reader.header()
        reader.end()
        with pytest.raises(OSError, match="nobody waits"):
            reader.read_into(header.parts[0].start, [memoryview(bytearray(4))])


def test_pieces_are_proven_wherever_memory_ends():
    """What is sealed as one piece may go to several places, and several pieces to one."""
    sizes = (1, _PIECE_BYTES - 1, 5, 2 * _PIECE_BYTES, 0, 7)
    pieces = list(_sealed_pieces([memoryview(bytes(size)) for size in sizes]))
    assert [sum(map(len, piece)) for piece in pieces] == [_PIECE_BYTES] * 3 + [12]
    assert [len(piece) for piece in pieces] == [2, 2, 1, 2]


def test_what_was_asked_once_is_not_answered_again(vault):
    """security A5"""
    with closing(Relay(vault.address)) as relay:
        read(relay.address)
    host, _, port = vault.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stranger:
        stranger.sendall(relay.heard["asked"])
        heard = b""
        with suppress(ConnectionError):
            while data := stranger.recv(4096):
                heard += data
    assert len(heard) <= 32  # its question
    assert vault.bytes[-100:] not in heard


def test_an_address_that_is_none_is_told_to_the_worker(vault):
    """security A5: the replica's thread died and nobody heard of it."""
    for nonsense in ("", "nowhere", "host:port", "host:99999999", "[::1]:x", 7):
        said = []
        replica = Replica(
            Buddy(address=nonsense, token=TOKEN, timers=TIMERS),
            vault.claim,
            num_slots=3,
            taken=lambda: None,
            refused=said.append,
        )
        replica.start()
        replica._thread.join(PATIENCE_S)
        assert len(said) == 1, nonsense
        assert "expected HOST:PORT" in said[0]


def test_a_vault_listens_on_an_address_of_either_kind(tmp_path):
    """parallel A11"""
    server = VaultServer.open("::1", KeptShelf(VaultMemory(tmp_path)), token=TOKEN, timers=TIMERS)
    with pytest.raises(VaultError, match="no snapshot of generation 1 at step 4"):
        read(server.address)
    server.close()
