import pytest
import torch

from remesh.parallel.groups import collectives


def all_of_them(seat):
    group = seat.form()
    rank, size = seat.rank, seat.size
    reduced = torch.full((5,), rank, dtype=torch.int64)
    collectives.all_reduce_(group, reduced)
    gathered = torch.empty(2 * size)
    collectives.all_gather(group, gathered, torch.tensor([float(rank), -float(rank)]))
    sizes = [(rank + other) % 2 for other in range(size)]
    received = torch.full((sum(sizes),), -1.0)
    own = torch.full((sum(sizes),), float(rank))
    collectives.start_all_to_all(group, received, own, sizes, sizes).wait()
    group.close()
    return reduced.tolist(), gathered.tolist(), received.tolist(), group.bytes_sent


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_collective_does_what_it_says(pool, size):
    for rank, (reduced, gathered, received, num_bytes) in enumerate(pool.run(all_of_them, size)):
        assert reduced == [sum(range(size))] * 5
        assert gathered == [value for other in range(size) for value in (other, -other)]
        assert received == [other for other in range(size) if (rank + other) % 2]
        assert (num_bytes > 0) == (size > 1)
