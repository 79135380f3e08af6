"""Neighbours in a pipeline: who is one, what they send each other, and what a stage reads."""

import pytest
import torch
from piped import MODEL, Piped, formed, steps
from small_engine import filler

from remesh.parallel.groups.pipes import exchange
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.schedules.operations import BorderMessage, Exchange, Receive, Send
from remesh.parallel.step.borders import Borders, BorderShape
from remesh.parallel.sums.gradients import Accumulators, Contribution

MANY = 1 << 21  # numbers: more than what lies in sockets on its way
SHAPE = BorderShape(shape=(MANY,), dtype=torch.float32, device=torch.device("cpu"))


def neighbours(seat, layout):
    """Of each pipe: the rank behind it, and how many groups this rank has formed for them all."""
    mesh = seat.mesh(layout)
    told = {peer: torch.tensor([seat.rank]) for peer in mesh.pipes}
    heard = {peer: torch.tensor([-1]) for peer in mesh.pipes}
    for operation in exchange(
        [(pipe, told[peer]) for peer, pipe in mesh.pipes.items()],
        [(pipe, heard[peer]) for peer, pipe in mesh.pipes.items()],
    ):
        operation.wait()
    groups = {id(group) for pipe in mesh.pipes.values() for group in (pipe.out, pipe.back)}
    mesh.close()
    return {peer: int(rank) for peer, rank in heard.items()}, len(groups)


@pytest.mark.parametrize(
    "layout", [Layout(pp=2), Layout(pp=3), Layout(dp=2, pp=4), Layout(dp=2, pp=2, tp=2), Layout()]
)
def test_a_pipe_leads_to_each_neighbour_and_the_last_rank_is_one_of_the_first(pool, layout):
    for rank, (found, num_groups) in enumerate(pool.run(neighbours, layout.world_size, layout)):
        pipeline = layout.neighbours(rank, "pp")
        own = pipeline.index(rank)
        around = {(own + step) % len(pipeline) for step in (-1, 1)} - {own}
        assert found == {position: pipeline[position] for position in around}
        assert num_groups == 2 * len(around)  # one for each direction


def activation(microbatch):
    return BorderMessage(what="activation", border=0, microbatch=microbatch)


def gradient(microbatch):
    return BorderMessage(what="gradient", border=0, microbatch=microbatch)


def receive_ahead(seat):
    """Rank 1 receives the second message while it has only been asked for the first one."""
    mesh = seat.mesh(Layout(pp=2))
    kind = Send if seat.rank == 0 else Receive
    schedule = [kind(peer=1 - seat.rank, message=activation(number)) for number in (0, 1)]
    borders = Borders(schedule, mesh.pipes, SHAPE)
    if seat.rank == 0:
        for number, operation in enumerate(schedule):
            borders.put(activation(number), torch.full((MANY,), float(number)))
            borders.carry_out(operation)
        borders.finish()
        seat.say("all sent")
        mesh.close()
        return None
    borders.carry_out(schedule[0])
    seat.hear("all sent", of=0)
    borders.carry_out(schedule[1])
    found = [borders.take(activation(number)) for number in (0, 1)]
    mesh.close()
    return [set(tensor.tolist()) for tensor in found]


def test_the_next_message_travels_before_it_is_asked_for(pool):
    assert pool.run(receive_ahead, 2)[1] == [{0.0}, {1.0}]


def cross(seat, at_once):
    """Both ranks send before they receive, or do both at once."""
    mesh, peer = seat.mesh(Layout(pp=2)), 1 - seat.rank
    sent, received = [activation(0), gradient(0)][:: 1 if seat.rank == 0 else -1]
    schedule = [Exchange(peer=peer, send=sent, receive=received)]
    if not at_once:
        schedule = [Send(peer=peer, message=sent), Receive(peer=peer, message=received)]
    borders = Borders(schedule, mesh.pipes, SHAPE)
    borders.put(sent, torch.full((MANY,), float(seat.rank)))
    for operation in schedule:
        borders.carry_out(operation)
    found = set(borders.take(received).tolist())
    borders.finish()
    mesh.close()
    return found


@pytest.mark.parametrize("at_once", [False, True])
def test_messages_of_two_directions_do_not_wait_for_each_other(pool, at_once):
    assert pool.run(cross, 2, at_once) == [{1.0}, {0.0}]


def read_microbatches(seat, layout, case):
    mesh, read = seat.mesh(layout), []
    engine = formed(mesh, case, case.spec((4, 1, 2)))
    engine.reset()

    def fill(first, out):
        read.append(first)
        return filler(1)(first, out)

    [result] = steps(engine, [1], fill=fill)
    mesh.close()
    return read, result.samples, result.tokens


@pytest.mark.parametrize(
    ("layout", "schedule", "reading"),
    [
        (Layout(pp=4), "1f1b", {0, 3}),
        (Layout(pp=4), "interleaved", {0, 3}),
        (Layout(pp=2), "dualpipe-v", {0}),  # it holds both ends
        (Layout(), "1f1b", {0}),
    ],
)
def test_ranks_at_the_ends_alone_read_each_microbatch_once(pool, layout, schedule, reading):
    case = Piped(schedule=schedule)
    outcomes = pool.run(read_microbatches, layout.world_size, layout, case)
    for rank, (read, samples, tokens) in enumerate(outcomes):
        assert read == ([0, 2, 4, 6] if rank in reading else [])
        assert (samples, tokens) == (8, 8 * MODEL.seq_len)


class Noted:
    """A sum that only notes when its exchange starts."""

    def __init__(self, name, started):
        self.name, self.started = name, started

    def add(self, *_):
        return True

    def start(self):
        self.started.append(self.name)

    def advance(self):
        pass


def started(in_rounds, closed):
    """The exchanges of two stages of two blocks each, in the order in which they start."""
    parts = [
        Contribution(bucket=n, size=64, parameters={}, targets=(), first_block=n, last_block=n)
        for n in range(4)
    ]
    order = []
    accumulators = Accumulators(
        parts, [Noted(n, order) for n in range(4)], None, None, in_rounds=in_rounds
    )
    for block in closed:
        accumulators.close(block, None, ends_leaf=True)
    return order


def test_ranks_with_different_schedules_start_their_exchanges_in_one_order():
    for closed in ((3, 2, 1, 0), (1, 0, 3, 2), (1, 3, 0, 2)):
        assert started(False, closed) == [3, 2, 1, 0]
        assert started(True, closed) == list(closed)
