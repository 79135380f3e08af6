import pytest
import torch

from remesh.parallel import collectives
from remesh.parallel.leaves import deal
from remesh.parallel.tree import GradientTree


def all_of_them(seat):
    group = seat.form()
    rank, size = seat.rank, seat.size
    reduced = torch.full((5,), rank, dtype=torch.int64)
    collectives.all_reduce_(group, reduced)
    gathered = torch.empty(2 * size)
    collectives.all_gather(group, gathered, torch.tensor([float(rank), -float(rank)]))
    sizes = [(rank + other) % 2 for other in range(size)]
    received = torch.full((sum(sizes),), -1.0)
    collectives.all_to_all(group, received, torch.full((sum(sizes),), float(rank)), sizes, sizes)
    sent = torch.full((3,), float(rank))
    collectives.broadcast_(group, sent, size - 1)
    group.close()
    return reduced.tolist(), gathered.tolist(), received.tolist(), sent.tolist(), group.bytes_sent


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_collective_does_what_it_says(pool, size):
    for rank, (reduced, gathered, received, sent, num_bytes) in enumerate(
        pool.run(all_of_them, size)
    ):
        assert reduced == [sum(range(size))] * 5
        assert gathered == [value for other in range(size) for value in (other, -other)]
        assert received == [other for other in range(size) if (rank + other) % 2]
        assert sent == [size - 1] * 3
        assert (num_bytes > 0) == (size > 1)


def leaf_gradients(num_leaves, size):
    """Values of very different sizes, so that any other order of additions shows."""
    generator = torch.Generator().manual_seed(num_leaves)
    scales = 10.0 ** torch.randint(-6, 7, (num_leaves, 1), generator=generator)
    return torch.randn(num_leaves, size, generator=generator) * scales


def reduce_by_tree(seat, num_leaves, size):
    group = seat.form()
    gradients = leaf_gradients(num_leaves, size)
    tree = GradientTree(num_leaves, size)
    sums = []
    for _ in range(2):  # the second time in used buffers
        tree.clear()
        for leaf in deal(num_leaves, seat.size)[seat.rank]:
            tree.add(leaf, tree.take().add_(gradients[leaf]))
        sums.append(tree.reduce(group).clone())
    group.close()
    assert torch.equal(*sums)
    return sums[0]


@pytest.mark.parametrize(("num_leaves", "size"), [(12, 64 * 37), (8, 64), (5, 64 * 3), (2, 128)])
def test_the_tree_has_the_same_bits_at_every_number_of_ranks(pool, num_leaves, size):
    [expected] = pool.run(reduce_by_tree, 1, num_leaves, size)
    gradients = leaf_gradients(num_leaves, size)
    torch.testing.assert_close(expected, gradients.double().sum(0).float(), rtol=1e-5, atol=1.0)
    for ranks in (2, 3, 4, 5, 7, 8):
        for total in pool.run(reduce_by_tree, ranks, num_leaves, size):
            assert torch.equal(total, expected), ranks


def test_a_plain_all_reduce_would_not(pool):
    """The reason for the tree: should this ever pass, the tree could go."""
    sums = [pool.run(reduce_plainly, ranks, 12, 64 * 37)[0] for ranks in (1, 2, 3, 4)]
    assert not all(torch.equal(total, sums[0]) for total in sums)


def reduce_plainly(seat, num_leaves, size):
    group = seat.form()
    gradients = leaf_gradients(num_leaves, size)
    total = torch.zeros(size)
    for leaf in deal(num_leaves, seat.size)[seat.rank]:
        total += gradients[leaf]
    collectives.all_reduce_(group, total)
    group.close()
    return total


def test_few_buffers_live_at_a_time():
    tree = GradientTree(64, 64)
    taken = set()
    for leaf in range(64):
        buffer = tree.take()
        taken.add(buffer.data_ptr())
        tree.add(leaf, buffer)
    assert len(taken) <= 8
