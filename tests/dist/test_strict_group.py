"""A strict group names what only a device would show: by an error on all ranks, never by a hang."""

import math
import re
import signal
import threading
from dataclasses import replace

import pytest
import test_group
import torch
from process_pool import NEVER_S
from waiting import soon

from remesh.parallel.groups.collectives import all_reduce_, start_all_gather, start_all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Group
from remesh.parallel.plan.errors import Cancelled, GroupError
from remesh.parallel.plan.layout import Layout


def error_of(act, *args):
    """The text of what the group raises."""
    with pytest.raises(GroupError) as caught:
        act(*args)
    return str(caught.value)


def send(group, tensor, peer, tag=0):
    return group.start(lambda pg: pg.send([tensor], peer, tag), tensor.nbytes)


def receive(group, tensor, peer, tag=0):
    return group.start(lambda pg: pg.recv([tensor], peer, tag), 0)


def skip_a_wait(seat):
    """Rank 0 goes on without waiting for what it gathers."""
    mesh = seat.mesh(Layout(dp=seat.size))
    gathered = torch.zeros(8 * seat.size)

    def gather():
        operation = start_all_gather(mesh.world, gathered, torch.ones(8))
        if seat.rank != 0:
            operation.wait()

    text = error_of(lambda: [gather(), all_reduce_(mesh.world, gathered)])
    mesh.close()
    return text, gathered.tolist()


def test_a_skipped_wait_is_named_and_what_was_read_too_early_is_no_number(strict_pool):
    outcomes = strict_pool.run(skip_a_wait, 3)
    for text, _ in outcomes:
        assert (
            "nobody has waited for operation 1 of the group world, broadcast of 8 float32" in text
        )
    _, read = outcomes[0]
    assert read[:8] == [1.0] * 8
    assert all(math.isnan(number) for number in read[8:])


def swap(seat):
    """Rank 1 has two collectives the other way round."""
    mesh = seat.mesh(Layout(dp=2, tp=2))
    tensors = [torch.ones(8), torch.ones(6)]
    all_reduce_(mesh.world, torch.ones(1))

    def act():
        for tensor in reversed(tensors) if seat.rank == 1 else tensors:
            all_reduce_(mesh.tensor, tensor)
        all_reduce_(mesh.world, torch.ones(1))

    texts = error_of(act), error_of(all_reduce_, mesh.data, tensors[0])
    mesh.close()
    return texts


def test_two_swapped_collectives_are_told_to_all_ranks_with_both_sequences(strict_pool):
    [text] = {text for texts in strict_pool.run(swap, 4) for text in texts}
    assert re.search(
        r"ranks 0 and 1 differ in the size that is next in the group world/0\+2x1: "
        r"rank 0 has operation 1, all_reduce sum of 8 float32 with 1; "
        r"rank 1 has operation 1, all_reduce sum of 6 float32 with 0. "
        r"There rank 0 has started 1 all_reduce.*; rank 1 has started 1 all_reduce",
        text,
    )


def send_in_vain(seat):
    """Rank 0 sends in one group what rank 1, which waits in another one, never receives."""
    mesh = seat.mesh(Layout(tp=2, dp=2))
    if seat.rank == 0:
        text = error_of(lambda: send(mesh.tensor, torch.ones(5), 1).wait())
    else:
        text = error_of(all_reduce_, mesh.world, torch.ones(1))
    mesh.close()
    return text


def test_a_send_without_a_receiver_is_named_though_all_wait_elsewhere(strict_pool):
    [text] = set(strict_pool.run(send_in_vain, 4))
    assert "rank 0 waits in the group world/0+2x1 for its operation 1, send of 5 float32" in text
    assert "rank 0 has started 1 send of 5 float32 to 1; rank 1 has started nothing" in text


def cross(seat):
    group = seat.form()
    own, other = torch.ones(4), torch.zeros(4)

    def exchange():
        sent = send(group, own, 1 - seat.rank)
        received = receive(group, other, 1 - seat.rank)
        sent.wait()
        received.wait()

    text = error_of(exchange)
    group.close()
    return text


def test_sends_that_cross_in_one_group_are_named(strict_pool):
    for text in strict_pool.run(cross, 2):
        assert "rank 0 has operation 1, send of 4 float32 to 1" in text
        assert "rank 1 has operation 1, send of 4 float32 to 0" in text


def leave_early(seat):
    group = seat.form()
    all_reduce_(group, torch.ones(1))
    if seat.rank == 1:
        group.close()
        return ""
    text = error_of(lambda: receive(group, torch.ones(4), 1).wait())
    group.close()
    return text


def test_a_receive_whose_sender_has_left_is_named(strict_pool):
    text, _ = strict_pool.run(leave_early, 2)
    assert "rank 1 has left the group world without its part" in text
    assert "operation 2, receive of 4 float32 from 1" in text


def look_early(seat):
    """What can be seen of each result between start and wait, and after it."""
    group, rank, other = seat.form(), seat.rank, 1 - seat.rank
    seen = []
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.uint8):
        sums, got = torch.full((3,), 2, dtype=dtype), torch.zeros(2, dtype=dtype)
        operations = [start_all_reduce_(group, sums)]
        sent, arriving = torch.full((2,), rank, dtype=dtype), got
        if rank == 0:
            operations += [send(group, sent, other), receive(group, arriving, other)]
        else:
            operations += [receive(group, arriving, other), send(group, sent, other)]
        all_reduce_(group, torch.ones(1))  # by now the others have done it all
        early = torch.cat((sums, got)).tolist()
        for operation in reversed(operations):
            operation.wait()
        seen.append((early, torch.cat((sums, got)).tolist()))
    group.close()
    return seen


def test_what_is_written_holds_poison_until_the_wait(strict_pool):
    for rank, seen in enumerate(strict_pool.run(look_early, 2)):
        floats, halves, integers, octets = seen
        for early, _ in (floats, halves):
            assert all(value != value for value in early)  # noqa: PLR0124 - NaN
        assert set(integers[0]) == {torch.iinfo(torch.int64).min}
        assert set(octets[0]) == {255}
        assert [late for _, late in seen] == [[4, 4, 4, 1 - rank, 1 - rank]] * 4


def touch(seat, written):
    """Rank 0 writes to a buffer in flight."""
    group = seat.form()
    own, other = torch.ones(4), torch.zeros(4)
    operation = send(group, own, 1) if seat.rank == 0 else receive(group, other, 0)
    back = receive(group, other, 1) if seat.rank == 0 else send(group, own, 0)
    if seat.rank == 0:
        (other if written else own)[2] = 5
        text = error_of(lambda: [operation.wait(), back.wait()])
        group.close()
        return text
    operation.wait()
    seat.say("received")
    with pytest.raises(GroupError):
        receive(group, other, 0).wait()
    group.close()
    return ""


@pytest.mark.parametrize(("written", "what"), [(False, "reads"), (True, "writes")])
def test_a_buffer_that_is_touched_in_flight_is_named(strict_pool, written, what):
    text, _ = strict_pool.run(touch, 2, written)
    assert f"a tensor that it {what} was changed before it was waited for" in text


def refuse(seat, kind):
    group = seat.form()
    whole = torch.zeros(4, 4)
    tensor, tag = (whole[:, 1], 0) if kind == "strided" else (whole, 7)
    text = error_of(send, group, tensor, 1 - seat.rank, tag)
    group.close()
    return text


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("strided", "a tensor of shape [4] with strides [4] is not contiguous"),
        ("tagged", "there are no tags, and this one has 7"),
    ],
)
def test_what_a_device_has_not_is_refused(strict_pool, kind, what):
    for text in strict_pool.run(refuse, 2, kind):
        assert what in text


def wait_behind_a_fence(seat):
    """The other rank never starts it; the fence frees this one."""
    fence = GenerationFence()
    group = seat.form(fence)
    if seat.rank == 1:
        seat.hear("freed", of=0)
        group.close()
        return "left"
    operation = start_all_reduce_(group, torch.ones(3))
    threading.Thread(target=fence.up, args=(seat.generation,), daemon=True).start()
    with pytest.raises(Cancelled):
        operation.wait()
    seat.say("freed")
    group.close()
    return "freed"


def test_a_fence_frees_who_waits_for_a_rank_that_starts_nothing(strict_pool):
    assert strict_pool.run(wait_behind_a_fence, 2) == ["freed", "left"]


def test_a_fence_frees_ranks_though_the_one_with_the_referee_is_frozen(strict_pool):
    run = strict_pool.start(test_group.block_until_fenced, 4)
    run.hear("started")
    run.signal(0, signal.SIGSTOP)
    run.say("leave")
    assert "Cancelled" in run.results([1, 2, 3])


def run_out_of_time(seat):
    group = seat.form(op_timeout_s=0.2)
    if seat.rank == 1:
        seat.hear("told", of=0)
        group.close()
        return ""
    text = error_of(all_reduce_, group, torch.ones(3))
    seat.say("told")
    group.close()
    return text


def test_the_time_limit_of_an_operation_holds(strict_pool):
    text, _ = strict_pool.run(run_out_of_time, 2)
    assert "operation 1 of the group world, all_reduce sum of 3 float32 with 1 has waited" in text


def form_unlike(seat):
    own = replace(seat, strict=seat.rank == 0)
    return error_of(lambda: own.form(form_timeout_s=NEVER_S))


def test_strict_and_plain_ranks_do_not_form_a_group(pool):
    for text in pool.run(form_unlike, 2):
        assert "start all ranks with the same REMESH_STRICT_GROUPS" in text


def form_and_leave(seat, count):
    """Whether there are no more threads in the end than after one mesh."""
    counts = []
    for number in range(count):
        part = seat.mesh(Layout(dp=2, tp=2), generation=seat.generation * 1000 + 10**9 + number)
        all_reduce_(part.tensor, torch.ones(3))
        all_reduce_(part.world, torch.ones(3))
        part.close()
        counts.append(threading.active_count())
    return soon(lambda: threading.active_count() <= min(counts[:3]))


def test_a_referee_ends_with_its_mesh(strict_pool):
    assert all(strict_pool.run(form_and_leave, 4, 8))


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_group_has_a_referee_only_if_it_is_strict(strict_pool, is_strict):
    strict_pool.strict = is_strict
    assert set(strict_pool.run(has_referee, 2)) == {is_strict}


def has_referee(seat):
    group = Group.form(seat.rendezvous(), GenerationFence())
    found = group._parts.line is not None
    all_reduce_(group, torch.ones(1))
    group.close()
    return found
