import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest
import torch
from process_pool import HOST, Seat

from remesh.parallel.groups import collectives
from remesh.parallel.groups import group as group_module
from remesh.parallel.plan.errors import Cancelled, GroupError
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.store import StoreClient


def sum_of_ranks(seat):
    group = seat.form()
    tensor = torch.tensor([float(seat.rank)])
    collectives.all_reduce_(group, tensor)
    group.close()
    group.close()
    return tensor.item()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_group_forms_computes_and_closes(pool, size):
    assert pool.run(sum_of_ranks, size) == [sum(range(size))] * size


def block_in_all_reduce(seat):
    """Time at which this rank was freed, and how: its own error or the fence."""
    fence = GenerationFence()
    group = seat.form(fence)
    collectives.all_reduce_(group, torch.ones(8))
    started_s = time.time()
    try:
        for _ in range(10**9):
            collectives.all_reduce_(group, torch.ones(200_000))
    except (GroupError, Cancelled) as error:
        kind = type(error).__name__
    freed_s = time.time()
    group.close()
    return kind, started_s, freed_s


def test_a_killed_peer_frees_all_ranks_in_milliseconds(pool):
    run = pool.start(block_in_all_reduce, 4)
    time.sleep(0.5)
    killed_s = time.time()
    run.signal(2, signal.SIGKILL)
    for kind, started_s, freed_s in run.results([0, 1, 3]):
        assert kind == "GroupError"
        assert started_s < killed_s < freed_s < killed_s + 0.5


def block_until_fenced(seat, delay_s):
    """The control thread raises the fence while the trainer is blocked on a frozen peer."""
    fence = GenerationFence()
    group = seat.form(fence)
    raised_s = []

    def raise_fence():
        time.sleep(delay_s)
        raised_s.append(time.time())
        fence.up(seat.generation)

    threading.Thread(target=raise_fence, daemon=True).start()
    try:
        for _ in range(10**9):
            collectives.all_reduce_(group, torch.ones(200_000))
    except (Cancelled, GroupError):  # a neighbour may be faster than the own fence
        freed_s = time.time()
    group.close()
    return freed_s - raised_s[0], time.time() - freed_s


def test_the_fence_frees_ranks_from_a_frozen_peer(pool):
    run = pool.start(block_until_fenced, 4, 0.8)
    time.sleep(0.4)
    run.signal(1, signal.SIGSTOP)
    for freed_s, closed_s in run.results([0, 2, 3]):
        assert freed_s < 0.3
        assert closed_s < 0.5


def sleep_through_a_generation(seat):
    """Rank 1 is frozen in a collective; the others leave, form anew and reuse their buffers."""
    fence = GenerationFence()
    group = seat.form(fence)
    buffer = torch.ones(200_000)
    threading.Timer(0.6, fence.up, [seat.generation]).start()
    try:
        for _ in range(10**9):
            collectives.all_reduce_(group, buffer.fill_(1))
    except (Cancelled, GroupError):
        group.close()
    if seat.rank == 1:
        return "woke up"
    again = replace(seat, rank=min(seat.rank, 1), size=2)
    group = again.form(generation=seat.generation + 4 * 10**6)
    buffer.fill_(7)
    stop_s = time.time() + 1.0
    late = torch.zeros(1)
    while not late:
        assert buffer.eq(7).all()
        collectives.all_reduce_(group, late.fill_(float(time.time() > stop_s)))
    group.close()
    return "kept"


def test_one_who_wakes_up_after_its_generation_harms_nobody(pool):
    run = pool.start(sleep_through_a_generation, 3)
    time.sleep(0.3)
    run.signal(1, signal.SIGSTOP)
    time.sleep(0.8)
    run.signal(1, signal.SIGCONT)
    assert run.results(timeout_s=5) == ["kept", "woke up", "kept"]


def form_without_the_last(seat, delay_s):
    fence = GenerationFence()
    if seat.rank == seat.size - 1:
        return None
    timer = threading.Timer(delay_s, fence.up, [seat.generation])
    timer.start()
    started_s = time.time()
    with pytest.raises(Cancelled):
        seat.form(fence)
    return time.time() - started_s


def test_the_fence_frees_a_rank_that_waits_for_a_missing_peer(pool):
    *waited_s, _ = pool.run(form_without_the_last, 3, 0.3)
    assert all(0.2 < s < 0.6 for s in waited_s)


def form_in_vain(seat):
    if seat.rank == 0:
        return None
    started_s = time.time()
    with pytest.raises(GroupError, match=f"rank {seat.rank} of 3 could not form generation"):
        seat.form(form_timeout_s=0.5)
    return time.time() - started_s


def test_forming_ends_with_its_timeout_when_a_peer_never_comes(pool):
    _, *waited_s = pool.run(form_in_vain, 3)
    assert all(0.4 < s < 1.5 for s in waited_s)


def form_with_one_that_dies(seat, number):
    """The last rank publishes its listener as all do, and then stops or dies before it connects."""
    if seat.rank == seat.size - 1:
        rendezvous = seat.rendezvous()
        prefix = f"generation-{seat.generation}"
        client = StoreClient.connect(
            HOST, seat.port, secret=seat.secret, prefix=prefix, timeout_s=5
        )
        _device, listener = group_module._make_device(rendezvous.node_ip)
        group_module._exchange_listeners(client, rendezvous, listener)
        os.kill(os.getpid(), number)
    started_s = time.time()
    fence = GenerationFence()
    threading.Timer(0.3, fence.up, [seat.generation]).start()
    with pytest.raises(Cancelled):
        seat.form(fence)
    return time.time() - started_s


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_fence_frees_ranks_whose_peer_went_away_while_forming(pool, number):
    run = pool.start(form_with_one_that_dies, 3, number)
    assert all(s < 0.6 for s in run.results([0, 1]))


def form_behind_the_fence(seat):
    fence = GenerationFence()
    fence.up(seat.generation)
    with pytest.raises(Cancelled):
        seat.form(fence)


def test_a_fence_that_overtakes_the_forming_holds(pool):
    started_s = time.time()
    pool.run(form_behind_the_fence, 2)
    assert time.time() - started_s < 2


def many_groups_at_once(seat, count):
    """Forms `count` groups one after another, keeps them, and computes on each."""
    first = seat.generation * 1000 + 10**6
    groups = [seat.form(generation=first + i) for i in range(count)]
    sums = []
    for i, group in enumerate(groups):
        tensor = torch.tensor([float(i)])
        collectives.all_reduce_(group, tensor)
        sums.append(tensor.item() / seat.size)
    groups[0].end()
    after = torch.ones(1)
    collectives.all_reduce_(groups[1], after)
    for group in groups:
        group.close()
    return sums, after.item()


def test_fifty_groups_live_at_the_same_time_on_one_host(pool):
    for sums, after in pool.run(many_groups_at_once, 2, 50):
        assert sums == list(range(50))
        assert after == 2


def start_groups_at_once(seat, count):
    """Forms `count` groups with one partner, all at the same time, and uses each."""
    seat = replace(
        seat, rank=seat.rank % 2, size=2, generation=seat.generation * 100 + seat.rank // 2
    )
    first = seat.generation * 1000 + 3 * 10**6
    with ThreadPoolExecutor(count) as threads:
        groups = list(threads.map(lambda i: seat.form(generation=first + i), range(count)))
    sums = []
    for i, group in enumerate(groups):
        tensor = torch.tensor([float(i)])
        collectives.all_reduce_(group, tensor)
        sums.append(tensor.item() / 2)
        group.close()
    return sums


def test_fifty_two_groups_start_at_the_same_time_on_one_host(pool):
    for sums in pool.run(start_groups_at_once, 8, 13):
        assert sums == list(range(13))


def form_again_and_again(seat, count):
    own = psutil.Process()
    first = seat.generation * 1000 + 2 * 10**6
    counts, took_s = [], []
    for i in range(count):
        started_s = time.time()
        group = seat.form(generation=first + i)
        took_s.append(time.time() - started_s)
        collectives.all_reduce_(group, torch.ones(1000))
        group.close()
        counts.append((own.num_fds(), own.num_threads()))
    return counts, sorted(took_s)[count // 2]


def test_forming_thirty_times_leaves_nothing_behind(pool):
    for counts, median_s in pool.run(form_again_and_again, 4, 30):
        files, threads = zip(*counts, strict=True)
        # A group or two may still be on its way out; thirty times anything would be far more.
        assert max(files[10:]) <= max(files[:10]) + 10
        assert max(threads) <= 10
        assert median_s < 0.2


class LatePending:
    """Ends, well or not, right after the first wait has given up."""

    def __init__(self, error=None):
        self.error = error
        self.waits = 0

    def wait(self, _timeout):
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise self.error
        return True

    def is_completed(self):
        return self.waits > 0


def test_an_operation_that_ends_as_the_wait_gives_up_has_succeeded():
    group = Group.form(Seat(0, 1, 1, b"", 5).rendezvous(), GenerationFence())
    group._wait(LatePending())
    with pytest.raises(RuntimeError, match="Connection closed"):
        group._wait(LatePending(RuntimeError("Connection closed by peer")))


def test_a_closed_group_refuses_operations(pool):
    pool.run(use_after_close, 2)


def use_after_close(seat):
    group = seat.form()
    collectives.all_reduce_(group, torch.ones(1))
    group.close()
    with pytest.raises(GroupError, match="is closed"):
        collectives.all_reduce_(group, torch.ones(1))


def end_what_is_over(seat):
    """What a group's own way out does after its close: nothing, whoever has its port by then."""
    group = seat.form()
    collectives.all_reduce_(group, torch.ones(1))
    ends = []
    group._end = lambda: ends.append(1)
    group.close()
    group.close()
    group.end()
    return len(ends)


def test_a_group_ends_once(pool):
    """parallel A11: later the port may be another group's, and NCCL's would be kept alive."""
    assert pool.run(end_what_is_over, 2) == [1, 1]


def form_on_a_name(seat, host):
    fence = GenerationFence()
    rendezvous = replace(seat.rendezvous(form_timeout_s=3), node_ip=host)
    group = Group.form(rendezvous, fence)
    tensor = torch.ones(1)
    collectives.all_reduce_(group, tensor)
    group.close()
    return tensor.item()


@pytest.mark.parametrize("host", ["localhost", "127.1", "::1"])
def test_a_node_may_be_known_by_a_name_or_a_short_address(pool, host):
    """parallel A11"""
    assert pool.run(form_on_a_name, 2, host) == [2, 2]


def test_a_generation_forms_past_strangers_at_its_store(pool):
    """security A2: silent ones, and one who has said half of what he should."""
    port, _ = pool._store
    strangers = [socket.create_connection((HOST, port), timeout=4) for _ in range(700)]
    strangers[0].sendall(bytes(40))
    assert pool.run(sum_of_ranks, 4) == [6] * 4
    for stranger in strangers:
        stranger.close()


class EndlessPending:
    """Its peers are gone and it does not notice."""

    waits = 0

    def wait(self, _timeout):
        self.waits += 1
        assert self.waits < 5, "it is waited for although the group is closed"
        raise RuntimeError("Operation timed out!")

    def is_completed(self):
        return False


def test_waiting_in_a_group_that_was_closed_ends():
    """parallel A11"""
    group = Group.form(Seat(0, 1, 1, b"", 5).rendezvous(), GenerationFence())
    group.close()
    with pytest.raises(RuntimeError, match="timed out"):
        group._wait(EndlessPending())


def test_a_rank_alone_obeys_the_fence_and_opens_no_socket():
    fence = GenerationFence()
    group = Group.form(Seat(0, 1, 1, b"", 5).rendezvous(), fence)
    collectives.all_reduce_(group, torch.ones(1))
    fence.up(5)
    group.end()
    group.close()
