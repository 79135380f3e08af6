"""Sums of leaf gradients: the same bits whoever adds them, at every stage of sharing them out."""

import pytest
import torch

from remesh.parallel.groups import collectives
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.pages.own_pages import OwnPages
from remesh.parallel.plan.dealing import deal_in_rounds, deal_in_runs
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.sums.lane import Lane, Sharing
from remesh.parallel.sums.meeting import SumMeeting
from remesh.parallel.sums.plain_sum import PlainSum, StreamedPlainSum
from remesh.parallel.sums.tree import StreamedTreeSum, TreeSum
from remesh.parallel.sums.workspace import Workspace

CPU = torch.device("cpu")
NUM_SEGMENTS = 4


def leaf_gradients(num_leaves, size):
    """Values of very different sizes, so that any other order of additions shows."""
    generator = torch.Generator().manual_seed(num_leaves)
    scales = 10.0 ** torch.randint(-6, 7, (num_leaves, 1), generator=generator)
    return torch.randn(num_leaves, size, generator=generator) * scales


def sharing_of(mesh):
    return Sharing(data=mesh.data, shard=mesh.shard, replica=mesh.replica)


def meeting_of(mesh):
    """None for a rank alone; all others read each other's memory."""
    assert mesh.pages or mesh.data.size == 1
    return mesh.pages and SumMeeting(mesh.data, mesh.replica, mesh.pages, OwnPages())


def lane_of(sharing, size, dealing, meeting=None):
    pieces = Pieces(size=size, num_shards=sharing.shard.size, num_replicas=sharing.replica.size)
    return Lane(
        pieces=pieces,
        sharing=sharing,
        dealing=dealing,
        workspace=Workspace(CPU, meeting and meeting.own),
        dtype=torch.float32,
        meeting=meeting,
    )


def dealing_of(kind, num_leaves, *dealt, **how):
    streams = kind in (StreamedTreeSum, StreamedPlainSum)
    tree = LeafTree(num_leaves=num_leaves, num_segments=NUM_SEGMENTS)
    return (deal_in_rounds if streams else deal_in_runs)(tree, *dealt, **how)


def add_up(seat, kind, num_leaves, size, num_shards, lengths=()):
    """The rank's shard without padding, twice: the second time in used buffers.

    A `kind` in a tuple has ranks read each other's memory, others send messages.
    """
    reads = isinstance(kind, tuple)
    kind = kind[0] if reads else kind
    mesh = seat.mesh(Layout(dp=seat.size), num_shards)
    gradients = leaf_gradients(num_leaves, size)
    dealing = dealing_of(kind, num_leaves, seat.size, lengths)
    lane = lane_of(sharing_of(mesh), size, dealing, meeting_of(mesh) if reads else None)
    pieces, gradient_sum = lane.pieces, kind(lane)
    totals = []
    for _ in range(2):
        for leaf in [*dealing.portions[seat.rank], *[None] * dealing.num_idle(seat.rank)]:
            buffer = None if leaf is None else gradient_sum.take()
            if leaf is not None:
                buffer[:size] += gradients[leaf]
            if gradient_sum.add(leaf, buffer):
                gradient_sum.start()
                gradient_sum.advance()
        owned = pieces.shard(mesh.shard.rank)
        totals.append(gradient_sum.total()[: len(owned)].clone())
        collectives.all_reduce_(mesh.data, torch.zeros(1))  # as a vote ends a step
        gradient_sum.clear()
    mesh.close()
    assert torch.equal(*totals)
    return mesh.shard.rank, totals[0]


def put_together(outcomes):
    """The whole sum, after a check that the replicas of a shard agree."""
    shards = {}
    for shard, total in outcomes:
        assert torch.equal(shards.setdefault(shard, total), total)
    return torch.cat([shards[number] for number in sorted(shards)])


@pytest.mark.parametrize(("num_leaves", "size"), [(12, 64 * 37), (8, 64), (5, 64 * 3), (2, 128)])
def test_the_tree_has_the_same_bits_at_every_number_of_ranks(pool, num_leaves, size):
    [(_, expected)] = pool.run(add_up, 1, TreeSum, num_leaves, size, 1)
    gradients = leaf_gradients(num_leaves, size)
    torch.testing.assert_close(expected, gradients.double().sum(0).float(), rtol=1e-5, atol=1.0)
    for ranks in (2, 3, 4, 5, 7, 8):
        for kind in (TreeSum, StreamedTreeSum):
            for num_shards in {1, ranks} if kind is TreeSum else {ranks}:
                for how in (kind, (kind,)) if kind is TreeSum else (kind,):
                    outcomes = pool.run(add_up, ranks, how, num_leaves, size, num_shards)
                    assert torch.equal(put_together(outcomes), expected), (ranks, how, num_shards)


@pytest.mark.parametrize("kind", [TreeSum, (TreeSum,), StreamedTreeSum])
@pytest.mark.parametrize(("ranks", "num_shards"), [(4, 2), (6, 2), (6, 3), (8, 4)])
def test_so_it_has_under_hybrid_sharding(pool, kind, ranks, num_shards):
    [(_, expected)] = pool.run(add_up, 1, TreeSum, 7, 64 * 9, 1)
    outcomes = pool.run(add_up, ranks, kind, 7, 64 * 9, num_shards)
    assert torch.equal(put_together(outcomes), expected)


@pytest.mark.parametrize("kind", [TreeSum, (TreeSum,), StreamedTreeSum])
@pytest.mark.parametrize("lengths", [(5, 2), (1, 6), (0, 7), (4, 1, 2), (3, 0, 4), (2, 3, 1, 1)])
def test_so_it_has_where_slow_ranks_add_fewer_leaves(pool, kind, lengths):
    ranks = len(lengths)
    [(_, expected)] = pool.run(add_up, 1, TreeSum, 7, 64 * 9, 1)
    for num_shards in {ranks} if kind is StreamedTreeSum else {1, ranks}:
        outcomes = pool.run(add_up, ranks, kind, 7, 64 * 9, num_shards, lengths)
        assert torch.equal(put_together(outcomes), expected)


def expert_gradient(unit, place, size):
    """What the experts at one place of an expert group get from a run of leaves."""
    return leaf_gradients(16, size)[2 * unit + place] * 3


def add_two_lanes(seat, kind, num_leaves, sharded):
    """A dense bucket over all ranks, and one of experts over every second, by runs of two leaves.

    The rank's shards of both sums; experts lie at two places. A `kind` in a tuple as in `add_up`.
    """
    reads = isinstance(kind, tuple)
    kind = kind[0] if reads else kind
    mesh = seat.mesh(Layout(dp=seat.size, ep=2), 2)
    alone = Mesh.alone().world
    dense = dealing_of(kind, num_leaves, seat.size, together=2)
    experts, others = mesh.replica, (mesh.shard, mesh.replica)
    shard, replica = (experts, alone) if sharded else (alone, experts)
    meetings = (None, None)
    if reads and experts.size > 1:
        meetings = (
            SumMeeting(mesh.data, mesh.replica, mesh.pages, OwnPages()),
            SumMeeting(experts, replica, mesh.expert_pages, OwnPages()),
        )
    lanes = [
        lane_of(
            Sharing(data=mesh.data, shard=others[0], replica=others[1]), 64 * 5, dense, meetings[0]
        ),
        lane_of(
            Sharing(data=experts, shard=shard, replica=replica),
            64 * 3,
            dense.by_runs(2),
            meetings[1],
        ),
    ]
    sums = [kind(lane) for lane in lanes]
    place = seat.rank % 2
    for leaf in [*dense.portions[seat.rank], *[None] * dense.num_idle(seat.rank)]:
        buffers = [None, None] if leaf is None else [one.take() for one in sums]
        if leaf is not None:
            buffers[0][: 64 * 5] += leaf_gradients(num_leaves, 64 * 5)[leaf]
            buffers[1][: 64 * 3] += expert_gradient(leaf // 2, place, 64 * 3)
        for one, buffer in zip(sums, buffers, strict=True):
            if one.add(leaf, buffer):
                one.start()
                one.advance()
    places = [mesh.shard.rank, (place, shard.rank)]
    totals = [
        one.total()[: len(lane.pieces.shard(lane.sharing.shard.rank))].clone()
        for one, lane in zip(sums, lanes, strict=True)
    ]
    mesh.close()
    return list(zip(places, totals, strict=True))


@pytest.mark.parametrize("kind", [TreeSum, (TreeSum,), StreamedTreeSum])
@pytest.mark.parametrize("num_leaves", [8, 12])
def test_lanes_of_dense_and_of_expert_buckets_keep_their_bits_side_by_side(pool, kind, num_leaves):
    """Two expert groups or four: experts are added by fewer ranks, in a tree of half the leaves."""
    [(_, dense)] = pool.run(add_up, 1, TreeSum, num_leaves, 64 * 5, 1)
    units = num_leaves // 2
    for ranks, sharded in ((2, True), (4, False), (4, True), (6, True), (8, False), (8, True)):
        if kind is StreamedTreeSum and not sharded:
            continue  # nobody streams what all keep
        found = pool.run(add_two_lanes, ranks, kind, num_leaves, sharded)
        assert torch.equal(put_together([both[0] for both in found]), dense), ranks
        for place in (0, 1):
            shards = [(at[1], total) for _, (at, total) in found if at[0] == place]
            expected = in_segments(
                [expert_gradient(unit, place, 64 * 3) for unit in range(units)], 2
            )
            assert torch.equal(put_together(shards), expected), (ranks, sharded, place)


def tree_of(values):
    """The aligned tree over a power of two, absent leaves left out."""
    while len(values) > 1:
        pairs = [values[n : n + 2] for n in range(0, len(values), 2)]
        values = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


def in_segments(values, count):
    """So many segments of as many values each."""
    size = len(values) // count
    return tree_of([tree_of(values[n * size : (n + 1) * size]) for n in range(count)])


def test_segments_are_added_up_first(pool):
    """12 leaves in 4 segments of 3: as a run of up to 4 replicas adds them."""
    gradients = list(leaf_gradients(12, 64))
    [(_, total)] = pool.run(add_up, 1, TreeSum, 12, 64, 1)
    assert torch.equal(total, in_segments(gradients, NUM_SEGMENTS))
    assert not torch.equal(total, tree_of(gradients))


@pytest.mark.parametrize("kind", [PlainSum, (PlainSum,), StreamedPlainSum])
@pytest.mark.parametrize(("ranks", "num_shards"), [(1, 1), (3, 1), (3, 3), (4, 2), (5, 5)])
def test_plain_sums_are_sums(pool, kind, ranks, num_shards):
    if kind is StreamedPlainSum and num_shards == 1 < ranks:
        return  # nobody streams what all keep
    outcomes = pool.run(add_up, ranks, kind, 4, 64 * 5, num_shards)
    expected = leaf_gradients(4, 64 * 5).double().sum(0).float()
    torch.testing.assert_close(put_together(outcomes), expected, rtol=1e-4, atol=1.0)


def test_a_plain_all_reduce_has_other_bits_at_every_number_of_ranks(pool):
    """The reason for the tree: should this ever pass, the tree could go."""
    sums = [put_together(pool.run(add_up, n, PlainSum, 12, 64 * 37, 1)) for n in (1, 2, 3, 4)]
    assert not all(torch.equal(total, sums[0]) for total in sums)


def average(seat, kind, num_shards):
    mesh = seat.mesh(Layout(dp=4), num_shards)
    lane = lane_of(sharing_of(mesh), 64, dealing_of(kind, 4, 4))
    pieces, gradient_sum = lane.pieces, kind(lane)
    gradient_sum.add(seat.rank, gradient_sum.take().fill_(2.0 * (seat.rank + 1)))
    gradient_sum.start()
    gradient_sum.advance()
    owned = len(pieces.shard(mesh.shard.rank))
    mean = (gradient_sum.total()[:owned] / 4).tolist()
    mesh.close()
    return mean


@pytest.mark.parametrize(
    ("kind", "num_shards"), [(TreeSum, 1), (PlainSum, 1), (StreamedTreeSum, 4), (TreeSum, 2)]
)
def test_gradients_of_2_4_6_and_8_average_to_5(pool, kind, num_shards):
    means = pool.run(average, 4, kind, num_shards)
    assert {value for mean in means for value in mean} == {5.0}


@pytest.mark.parametrize(("num_leaves", "limit"), [(64, 7), (48, 7), (1, 1)])
def test_few_buffers_live_at_a_time(num_leaves, limit):
    tree = TreeSum(lane_of(sharing_of(Mesh.alone()), 64, dealing_of(TreeSum, num_leaves, 1)))
    taken = set()
    for leaf in range(num_leaves):
        buffer = tree.take()
        taken.add(buffer.data_ptr())
        tree.add(leaf, buffer)
    assert len(taken) <= limit


def send(seat, kind, num_shards):
    """Bytes that a sum of one leaf a rank sends."""
    mesh = seat.mesh(Layout(dp=seat.size), num_shards)
    gradient_sum = kind(lane_of(sharing_of(mesh), 6400, dealing_of(kind, seat.size, seat.size)))
    gradient_sum.add(seat.rank, gradient_sum.take())
    gradient_sum.start()
    gradient_sum.advance()
    gradient_sum.total()
    mesh.close()
    return mesh.bytes_sent


@pytest.mark.parametrize("kind", [TreeSum, PlainSum])
def test_a_sum_sends_what_an_all_reduce_sends_and_half_of_it_where_it_ends_in_shards(pool, kind):
    for ranks in (2, 4):
        part = 4 * 6400 * (ranks - 1) // ranks
        assert set(pool.run(send, ranks, kind, 1)) == {2 * part}
        assert set(pool.run(send, ranks, kind, ranks)) == {part}


def reduce_scatter(seat):
    group = seat.form()
    parts = torch.arange(2.0 * seat.size) * (seat.rank + 1)
    out = torch.empty(2)
    collectives.start_reduce_scatter(group, out, parts).wait()
    largest = torch.tensor([float(seat.rank), -float(seat.rank)])
    collectives.all_reduce_(group, largest, "max")
    group.close()
    return out.tolist(), largest.tolist()


def test_reduce_scatter_and_the_maximum(pool):
    for rank, (part, largest) in enumerate(pool.run(reduce_scatter, 3)):
        assert part == [6.0 * (2 * rank), 6.0 * (2 * rank + 1)]
        assert largest == [2.0, 0.0]
