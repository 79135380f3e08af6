"""What ranks on one host read of each other ends as a message would, and leaves nothing behind."""

import gc
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from test_tree import dealing_of, lane_of, leaf_gradients, meeting_of, sharing_of

from remesh.parallel.groups import collectives
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.plan.errors import Cancelled, GroupError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.sums.tree import TreeSum

SIZE = 64 * 37


def offered(seat, fence=None):
    """A sum of four leaves on this rank's part of which all is done but the meeting."""
    mesh = seat.mesh(Layout(dp=seat.size), fence=fence)
    dealing = dealing_of(TreeSum, 4, seat.size)
    tree = TreeSum(lane_of(sharing_of(mesh), SIZE, dealing, meeting_of(mesh)))
    offer(seat, tree)
    return mesh, tree


def offer(seat, tree):
    for leaf in dealing_of(TreeSum, 4, seat.size).portions[seat.rank]:
        buffer = tree.take()
        buffer[:SIZE] += leaf_gradients(4, SIZE)[leaf]
        assert not tree.add(leaf, buffer)  # nothing to begin with beside backward


def killed(seat):
    mesh, tree = offered(seat)
    if seat.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(GroupError):
        tree.total()
    mesh.close()


def test_a_rank_that_dies_before_the_meeting_frees_the_others(pool):
    run = pool.start(killed, 3)
    run.results([0, 2])


def fenced(seat):
    """Rank 1 never comes to the meeting; the fence frees the other, from a thread of its own."""
    fence = GenerationFence()
    mesh, tree = offered(seat, fence)
    if seat.rank == 0:
        timer = threading.Timer(0.1, fence.up, (seat.generation,))
        timer.start()
        with pytest.raises(Cancelled):
            tree.total()
        seat.say("over")
    else:
        seat.hear("over", 0)
    mesh.close()


def test_the_fence_frees_a_rank_that_waits_at_the_meeting(pool):
    pool.run(fenced, 2)


def modified(seat):
    """The sum, from which this rank goes on to something else at once."""
    mesh, tree = offered(seat)
    found = []
    for _ in range(20):
        total = tree.total()
        found.append(total.clone())
        total.zero_()
        collectives.all_reduce_(mesh.data, torch.zeros(1))
        tree.clear()
        offer(seat, tree)
    mesh.close()
    return torch.stack(found)


def test_a_rank_may_change_its_sum_at_once(pool):
    """As it does where two sums meet in one bucket: the others have copied it by then."""
    expected = leaf_gradients(4, SIZE).double().sum(0).float()
    for found in pool.run(modified, 4):
        torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-5, atol=1.0)


def mappings():
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sum("remesh pages" in line for line in maps.splitlines())


def generations(seat):
    """Mappings of pages while there is a mesh, and after three of them."""
    gc.collect()
    counts = []
    for number in range(3):
        mesh = seat.mesh_part(seat.size, number)
        dealing = dealing_of(TreeSum, 4, seat.size)
        tree = TreeSum(lane_of(sharing_of(mesh), SIZE, dealing, meeting_of(mesh)))
        offer(seat, tree)
        tree.total()
        counts.append(mappings())
        mesh.close()
        del mesh, tree
        gc.collect()
    return counts, mappings()


def test_pages_go_with_their_mesh(pool):
    """A file of its own and one of each other rank; what earlier tests left is as it was."""
    for counts, after in pool.run(generations, 3):
        assert set(counts) == {after + 3}
