"""A vault without Ray: its server in one process, workers of the pool as its mappers."""

import contextlib
import re
import signal
import threading
from functools import partial

import pytest
from control_values import slot
from counted import c_calls
from small_engine import spec, started, state_hash, work_of, zero
from waiting import NEVER_S, PATIENCE_S, soon

from remesh.actors.orders import FormOrder, VaultOrder
from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.slot_reader import reading
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.actors.worker.snapshot_taker import SnapshotTaker
from remesh.orchestrator.control.words.records import FreshState
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.errors import GroupError, SlotError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.step.engine import Engine

TOKEN = "0123456789abcdef" * 2
TIMERS = Timers(patience_s=5.0)
ZERO3 = zero(3)
STEPS = 6
OVER = 2**40  # a generation after all


class TestVault:
    """A vault in this process; its folder stands in for shared memory."""

    __test__ = False

    def __init__(self, folder, **bounds):
        self.memory = VaultMemory(folder, **bounds)
        self.memory.open()
        self.shelf = KeptShelf(self.memory)
        self.server = VaultServer.open("127.0.0.1", self.shelf, token=TOKEN, timers=TIMERS)
        self.address = self.server.address

    def told(self, generation=OVER):
        found = self.shelf.told(generation, 2.0)
        return sorted((one.step, one.held.shard) for one in found)

    def close(self):
        self.server.close()
        self.memory.close()


@pytest.fixture
def vaults(tmp_path):
    """Two vaults, each the other's buddy."""
    made = [TestVault(tmp_path / name) for name in ("one", "two")]
    yield made
    for vault in made:
        vault.close()


def order_of(seat, own, buddy, from_step=0, size=2):
    return FormOrder(
        generation=seat.generation,
        rank=seat.rank,
        store_host="",
        store_port=0,
        store_secret=b"",
        form_timeout_s=PATIENCE_S,
        op_timeout_s=NEVER_S,
        rung=Rung(layout=Layout(dp=size), cut=Cut.of(Layout(dp=size), size)),
        restore=FreshState(),
        fills=False,
        from_step=from_step,
        vaults=VaultOrder(own=own, buddy=buddy, token=TOKEN),
    )


def ready_snapshots(order, mesh, engine):
    """Snapshots of every step, once the slots are there."""
    snapshots = SnapshotTaker(every=1, timers=TIMERS)
    snapshots.enter(order, mesh, engine.shard_state)
    soon(lambda: snapshots.ballot(1)[1])
    return snapshots


def train(engine, mesh, snapshots, steps):
    """Losses, hashes of the state by step, the stable steps, and which steps were taken."""
    hashes, stable, taken = {}, [], []
    for step in steps:
        work = work_of(mesh, step, snapshots=partial(snapshots.ballot, step))
        result = engine.step(step, work)
        snapshots.stable(result.stable_step)
        if result.snapshot:
            assert c_calls("copy_", snapshots.take, step) == 0  # memcpy is faster
            taken.append(step)
        hashes[step] = state_hash(engine)
        stable.append(result.stable_step)
    return hashes, stable, taken


def train_and_stop(seat, addresses):
    mesh = seat.mesh(Layout(dp=2), 2)
    engine = started(mesh, spec(4, 1, zero=ZERO3))
    own, buddy = addresses[seat.rank], addresses[1 - seat.rank]
    snapshots = ready_snapshots(order_of(seat, own, buddy), mesh, engine)
    outcome = train(engine, mesh, snapshots, range(1, STEPS + 1))
    safe = soon(lambda: snapshots.ballot(0)[0] >= outcome[2][-1])
    snapshots.leave()
    mesh.close()
    return outcome, safe, seat.generation


def restore_from(seat, slots, at_step, crossed):
    """Both ranks are new: each reads one slot, its own part out of its file or, `crossed`, the
    other's over a connection.
    """
    mesh = seat.mesh(Layout(dp=2), 2)
    engine = Engine(spec(4, 1, zero=ZERO3))
    engine.form(mesh)
    sources = [
        SlotSource(
            name=f"slot {slot.held.shard}",
            held=slot.held,
            open=lambda address=address, slot=slot: reading(
                address, TOKEN, slot, TIMERS, by_file=not crossed
            ),
        )
        for address, slot in [slots[seat.rank ^ crossed]]
    ]
    try:
        engine.share(None, at_step, sources)
        found = state_hash(engine)
    except SlotError as error:
        found = error.slot
    except GroupError:
        found = "the other rank has failed"
    finally:
        mesh.close()
    return found


def slot_of(rank, generation, step):
    cut = spec(12, 1, zero=ZERO3).cut(Layout(dp=2), 2)
    return slot("", cut.held_by(Layout(dp=2), rank), step, generation)


def test_what_was_safe_comes_back_with_the_same_bits_from_either_vault(pool, vaults):
    addresses = [vault.address for vault in vaults]
    outcomes = pool.run(train_and_stop, 2, addresses)
    (_, stable, taken), safe, generation = outcomes[0]
    assert safe
    assert (stable, taken) == outcomes[1][0][1:]
    assert taken[0] == 1
    assert all(step in (-1, *taken) for step in stable)
    newest = taken[-1]
    for vault in vaults:
        assert {(newest, 0), (newest, 1)} <= set(vault.told())
    expected = [outcome[0][0][newest] for outcome in outcomes]
    for first, second in ((0, 1), (0, 0), (1, 1)):
        slots = [
            (addresses[first], slot_of(0, generation, newest)),
            (addresses[second], slot_of(1, generation, newest)),
        ]
        for crossed in (0, 1):
            assert pool.run(restore_from, 2, slots, newest, crossed) == expected


def test_a_flipped_bit_in_a_slot_is_named_and_not_restored(pool, vaults):
    addresses = [vault.address for vault in vaults]
    outcomes = pool.run(train_and_stop, 2, addresses)
    (_, _, taken), _, generation = outcomes[0]
    newest = taken[-1]
    sealed = vaults[0].shelf.find(generation, newest, slot_of(1, generation, newest).held)
    slots = [(addresses[0], slot_of(rank, generation, newest)) for rank in (0, 1)]
    for place in (30, -5):
        sealed.memory.shard[place] ^= 4
        found = pool.run(restore_from, 2, slots, newest, 0)
        assert found == ["the other rank has failed", "slot 1"]
        sealed.memory.shard[place] ^= 4


def die_in_mid_copy(seat, address):
    """It dies with one slot begun and one copied whole."""
    mesh = seat.mesh(Layout(), 1)
    engine = started(mesh, spec(4, 1))
    snapshots = ready_snapshots(order_of(seat, address, "", size=1), mesh, engine)
    train(engine, mesh, snapshots, [1])
    soon(lambda: snapshots.ballot(2)[0] == 1)
    snapshots._say = lambda _: None
    snapshots.take(2)
    snapshots._slots[2].memory.step = 3
    snapshots._slots[2].memory.state = 1
    signal.raise_signal(signal.SIGKILL)


def test_a_worker_killed_in_mid_copy_leaves_what_it_had_copied_whole(pool, vaults):
    run = pool.start(die_in_mid_copy, 1, vaults[0].address)
    with contextlib.suppress(Exception):
        run.results()
    assert soon(lambda: vaults[0].told() == [(1, 0), (2, 0)]), vaults[0].told()
    assert len(list(vaults[0].memory.folder.iterdir())) == 4  # its lock, and a slot that is free


def train_without_buddy(seat, own, dead):
    mesh = seat.mesh(Layout(), 1)
    engine = started(mesh, spec(4, 1))
    snapshots = ready_snapshots(order_of(seat, own, dead, size=1), mesh, engine)
    outcome = train(engine, mesh, snapshots, [1, 2, 3])
    soon(lambda: snapshots.ballot(0)[0] >= 1)
    more = train(engine, mesh, snapshots, [4, 5])
    snapshots.leave()
    mesh.close()
    return outcome[2], more[1]


def test_a_buddy_that_is_gone_leaves_the_snapshots_of_the_own_vault(pool, vaults):
    vaults[1].close()
    taken, stable = pool.run(train_without_buddy, 1, vaults[0].address, vaults[1].address)[0]
    assert taken[0] == 1
    assert stable[-1] >= 1


def hold_on(seat, own, buddy):
    """Snapshots whose copies never arrive are sealed here and stable nowhere."""
    mesh = seat.mesh(Layout(), 1)
    engine = started(mesh, spec(4, 1))
    snapshots = ready_snapshots(order_of(seat, own, buddy, size=1), mesh, engine)
    outcome = train(engine, mesh, snapshots, [1, 2, 3, 4, 5])
    snapshots.leave()
    mesh.close()
    return outcome[1:]


def test_while_copies_are_in_flight_nothing_is_stable_and_no_slot_is_used_twice(pool, vaults):
    slow = SlowShelf(vaults[1].memory)
    held_up = VaultServer.open("127.0.0.1", slow, token=TOKEN, timers=TIMERS)
    stable, taken = pool.run(hold_on, 1, vaults[0].address, held_up.address)[0]
    assert stable == [-1] * 5
    assert taken == [1, 2, 3]
    assert vaults[0].told() == [(1, 0), (2, 0), (3, 0)]
    slow.let_go.set()
    held_up.close()


class SlowShelf(KeptShelf):
    def __init__(self, memory):
        super().__init__(memory)
        self.let_go = threading.Event()

    def arrived(self, lease, number, digest):
        assert self.let_go.wait(PATIENCE_S)
        super().arrived(lease, number, digest)


def move_on(seat, folder):
    """Its vault dies; there is another one later."""
    mesh = seat.mesh(Layout(), 1)
    engine = started(mesh, spec(4, 1))
    first = TestVault(folder / "first")
    snapshots = ready_snapshots(order_of(seat, first.address, "", size=1), mesh, engine)
    before = train(engine, mesh, snapshots, [1, 2])[2]
    soon(lambda: snapshots.ballot(0)[0] == 2)
    first.close()
    soon(lambda: not snapshots.ballot(0)[1])
    without = train(engine, mesh, snapshots, [3, 4])
    second = TestVault(folder / "second")
    snapshots.move(seat.generation, VaultOrder(own=second.address, buddy="", token=TOKEN))
    soon(lambda: snapshots.ballot(5)[1])
    after = train(engine, mesh, snapshots, [5])[2]
    soon(lambda: snapshots.ballot(0)[0] == 5)
    stable = train(engine, mesh, snapshots, [6])[1]
    told = second.told()
    second.close()
    snapshots.leave()
    mesh.close()
    return before, without[2], after, stable, told[0]


def test_a_rank_goes_to_another_vault_when_its_own_is_lost(pool, tmp_path):
    assert pool.run(move_on, 1, tmp_path) == [([1, 2], [], [5], [5], (5, 0))]


def refused(seat, own):
    mesh = seat.mesh(Layout(), 1)
    engine = started(mesh, spec(4, 1))
    said = []
    snapshots = SnapshotTaker(every=1, timers=TIMERS, paused=lambda *told: said.append(told))
    snapshots.enter(order_of(seat, own, "", size=1), mesh, engine.shard_state)
    soon(lambda: snapshots.ballot(1) and said)
    outcome = train(engine, mesh, snapshots, [1, 2])
    mesh.close()
    return outcome[2], engine.at_step, said


@pytest.mark.parametrize(
    ("bounds", "cure"),
    [
        ({"limit_bytes": 100_000}, "vault_bytes"),
        ({"free_bytes": lambda _: 100_000}, "snapshot_every"),
    ],
    ids=["bound", "full"],
)
def test_without_room_there_are_no_snapshots_it_is_said_and_training_goes_on(
    pool, tmp_path, bounds, cure
):
    vault = TestVault(tmp_path / "small", **bounds)
    ((taken, at_step, said),) = pool.run(refused, 1, vault.address)
    assert (taken, at_step) == ([], 2)
    assert len(said) == 1
    assert re.search(cure, said[0][1])
    assert vault.memory.used_bytes == 0
    assert [path.name for path in vault.memory.folder.iterdir()] == ["lock"]
    vault.close()
    assert not vault.memory.folder.exists()


def mesh_without_vaults(seat):
    mesh = seat.mesh(Layout(dp=2), 1)
    engine = started(mesh, spec(4, 1))
    sent = mesh.bytes_sent
    engine.step(1, work_of(mesh, 1))
    without = mesh.bytes_sent - sent
    sent = mesh.bytes_sent
    result = engine.step(2, work_of(mesh, 2, snapshots=lambda: (seat.rank + 4, seat.rank == 0)))
    mesh.close()
    return mesh.bytes_sent - sent - without, result.stable_step, result.snapshot


def test_the_stable_step_is_the_least_of_all_and_costs_no_byte_of_its_own(pool):
    outcomes = pool.run(mesh_without_vaults, 2)
    assert [outcome[1:] for outcome in outcomes] == [(4, False), (4, False)]
    assert all(extra <= 0 for extra, *_ in outcomes)  # the vote has a place for it
