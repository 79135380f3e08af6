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
from waiting import NEVER_S, PATIENCE_S, soon

from remesh.parallel.groups import collectives
from remesh.parallel.groups import group as group_module
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.store import StoreClient
from remesh.parallel.plan.errors import Cancelled, GroupError, LayoutError
from remesh.parallel.plan.layout import Layout


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


def reduce_until_freed(seat, fence, buffer):
    """The kind of error that freed this rank: its own or the fence."""
    group = seat.form(fence)
    collectives.all_reduce_(group, torch.ones(8))
    seat.say("started")
    with pytest.raises((GroupError, Cancelled)) as freed:
        reduce_for_ever(group, buffer)
    group.close()
    return freed.type.__name__


def reduce_for_ever(group, buffer):
    while True:
        collectives.all_reduce_(group, buffer.fill_(1))


def block_in_all_reduce(seat):
    return reduce_until_freed(seat, GenerationFence(), torch.empty(200_000))


def test_a_killed_peer_frees_all_ranks(pool):
    run = pool.start(block_in_all_reduce, 4)
    run.hear("started")
    run.signal(2, signal.SIGKILL)
    assert run.results([0, 1, 3]) == ["GroupError"] * 3


def raise_when_told(seat, fence):
    """The control thread raises the fence while the trainer is blocked."""

    def wait():
        seat.hear("leave")
        fence.up(seat.generation)

    threading.Thread(target=wait, daemon=True).start()


def block_until_fenced(seat):
    fence = GenerationFence()
    raise_when_told(seat, fence)
    return reduce_until_freed(seat, fence, torch.empty(200_000))


def test_the_fence_frees_ranks_from_a_frozen_peer(pool):
    run = pool.start(block_until_fenced, 4)
    run.hear("started")
    run.signal(1, signal.SIGSTOP)
    run.say("leave")
    kinds = run.results([0, 2, 3])
    assert "Cancelled" in kinds  # a neighbour may be faster than the own fence
    assert set(kinds) <= {"Cancelled", "GroupError"}


def sleep_through_a_generation(seat):
    """Rank 1 is frozen in a collective; the others leave, form anew and reuse their buffers."""
    fence, buffer, late = GenerationFence(), torch.empty(200_000), torch.zeros(1)
    raise_when_told(seat, fence)
    reduce_until_freed(seat, fence, buffer)
    if seat.rank == 1:
        return "woke up"
    again = replace(seat, rank=min(seat.rank, 1), size=2)
    group = again.form(generation=seat.generation + 4 * 10**6)
    buffer.fill_(7)
    seat.say("formed anew")
    ended = threading.Event()
    threading.Thread(target=lambda: (seat.hear("stop"), ended.set()), daemon=True).start()
    rounds_left = 100
    while rounds_left:
        assert buffer.eq(7).all()
        collectives.all_reduce_(group, late.fill_(float(ended.is_set())))
        rounds_left -= bool(late)
    group.close()
    return "kept"


def test_one_who_wakes_up_after_its_generation_harms_nobody(pool):
    run = pool.start(sleep_through_a_generation, 3)
    run.hear("started")
    run.signal(1, signal.SIGSTOP)
    run.say("leave")
    run.hear("formed anew", [0, 2])
    run.signal(1, signal.SIGCONT)
    assert run.results([1]) == ["woke up"]
    run.say("stop")
    assert run.results([0, 2]) == ["kept", "kept"]


def form_without_the_last(seat):
    fence = GenerationFence()
    if seat.rank == seat.size - 1:
        return
    threading.Timer(0.3, fence.up, [seat.generation]).start()
    with pytest.raises(Cancelled):
        seat.form(fence, form_timeout_s=NEVER_S)


def test_the_fence_frees_a_rank_that_waits_for_a_missing_peer(pool):
    pool.run(form_without_the_last, 3)


def form_in_vain(seat):
    if seat.rank == 0:
        return
    with pytest.raises(GroupError, match=f"rank {seat.rank} of 3 could not form generation"):
        seat.form(form_timeout_s=0.5)


def test_forming_ends_with_its_timeout_when_a_peer_never_comes(pool):
    pool.run(form_in_vain, 3)


def form_late(seat):
    if seat.rank == 0:
        seat.hear("about to form", of=1)
        time.sleep(0.3)
    seat.say("about to form")
    return sum_of_ranks(seat)


def test_forming_waits_for_a_peer_that_comes_late(pool):
    assert pool.run(form_late, 2) == [1, 1]


def form_with_one_that_dies(seat, number):
    """The last rank publishes its listener as all do, and then stops or dies before it connects."""
    if seat.rank == seat.size - 1:
        rendezvous = seat.rendezvous()
        prefix = f"generation-{seat.generation}"
        client = StoreClient.connect(
            HOST, seat.port, secret=seat.secret, prefix=prefix, timeout_s=PATIENCE_S
        )
        _device, listener = group_module._make_device(rendezvous.node_ip)
        group_module._exchange_listeners(client, rendezvous, listener)
        os.kill(os.getpid(), number)
    fence = GenerationFence()
    threading.Timer(0.3, fence.up, [seat.generation]).start()
    with pytest.raises(Cancelled):
        seat.form(fence, form_timeout_s=NEVER_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_fence_frees_ranks_whose_peer_went_away_while_forming(pool, number):
    pool.start(form_with_one_that_dies, 3, number).results([0, 1])


def form_behind_the_fence(seat):
    fence = GenerationFence()
    fence.up(seat.generation)
    with pytest.raises(Cancelled):
        seat.form(fence, form_timeout_s=NEVER_S)


def test_a_fence_that_overtakes_the_forming_holds(pool):
    pool.run(form_behind_the_fence, 2)


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
    counts = []
    for i in range(count):
        group = seat.form(generation=first + i)
        collectives.all_reduce_(group, torch.ones(1000))
        group.close()
        counts.append((own.num_fds(), own.num_threads()))
    files, threads = map(min, zip(*counts[:5], strict=True))
    # The last ones may still be on their way out.
    return soon(lambda: own.num_fds() <= files and own.num_threads() <= threads)


def test_forming_thirty_times_leaves_nothing_behind(pool):
    assert all(pool.run(form_again_and_again, 4, 30))


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
    rendezvous = replace(seat.rendezvous(form_timeout_s=PATIENCE_S), node_ip=host)
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
    strangers = [socket.create_connection((HOST, port), timeout=PATIENCE_S) for _ in range(700)]
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


@pytest.mark.parametrize(
    ("layout", "shard_size", "message"),
    [
        (Layout(dp=2), 1, "dp=2 does not fit 4 ranks; use 2 ranks"),
        (Layout(dp=4), 3, "zero_group=3 does not divide dp=4; use one of 1, 2, 4, or zero_group=0"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_before_a_group_forms(layout, shard_size, message):
    seat = Seat(rank=0, size=4, port=0, secret=b"", generation=1)
    with pytest.raises(LayoutError) as caught:
        seat.mesh(layout, shard_size)
    assert str(caught.value) == message
