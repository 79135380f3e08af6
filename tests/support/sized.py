"""Planning problems of any size: tests count what a larger one costs, a benchmark times it."""

import math

from control_drive import running
from control_values import held, slot
from tallied_drive import tallied

from remesh.orchestrator.control.words.records import Member
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import parameter_shapes
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.state.reshard import HeldFragment, by_name

NODE = 8  # workers


def box(offsets, sizes, shape, name="w"):
    return Fragment(name=name, global_shape=shape, offsets=offsets, sizes=sizes, dtype="float32")


def slices(num):
    """Parts of a tensor, by rows."""
    return [box((row, 0), (1, 8), (num, 8)) for row in range(num)]


def columns(num):
    return [box((0, column), (8, 1), (8, num)) for column in range(num)]


def stripes(num):
    """Holdings of `num` slices and of a file with the whole tensor; half as many wanted ones."""
    shape = (3 * num, 8)
    parts = [box((3 * i, 0), (3, 8), shape) for i in range(num)]
    have = by_name({0: parts, "file": [whole("w", shape, "float32")]})
    return have, [box((6 * i, 0), (6, 8), shape) for i in range(num // 2)]


def tiles(num_rows, num_columns):
    """Holdings of so many tiles; wanted are strips over all rows."""
    shape = (2 * num_rows, 3 * num_columns)
    parts = [
        box((2 * i, 3 * j), (2, 3), shape) for i in range(num_rows) for j in range(num_columns)
    ]
    want = [box((0, 6 * j), (2 * num_rows, 6), shape) for j in range(num_columns // 2)]
    return by_name({0: parts}), want


def row_of_tiles(num):
    return tiles(1, num)


def square_of_tiles(num):
    side = math.isqrt(num)
    return tiles(side, side)


def replicated_by_eight(num):
    """Tensors that eight ranks hold alike."""
    names = [whole(f"layers.{i}", (16, 16), "float32") for i in range(num)]
    return [HeldFragment(fragment=fragment, holders=tuple(range(8))) for fragment in names]


def a_loss_among(num_nodes, **shared):
    """A mesh that trains on so many nodes, and the loss of one of its members."""
    nodes = tuple((f"node-{number:05d}", NODE) for number in range(num_nodes))
    drive = running(10, nodes=nodes, **{"max_dp": NODE * num_nodes, **shared})

    def lose_one():
        commands = drive.lose("worker-77")
        drive.park(10)
        return commands

    return drive, lose_one


def a_lost_part_among(num_nodes):
    """The same with tensor groups whose state is in shards, which 16 replicas share."""
    shared = {"max_dp": num_nodes, "tp": NODE, "zero_stage": 3, "zero_group": 16}
    return a_loss_among(num_nodes, **shared)


def slots_of(num_nodes):
    """What the restore is decided by: rank 0 is lost; a rank has three slots in two vaults each."""
    layout, size = Layout(dp=num_nodes, tp=NODE), NODE * num_nodes
    parts = [held(rank, layout=layout, shard_size=num_nodes) for rank in range(size)]
    live = [
        Member(worker=f"w{r}", node=f"n{r // NODE}", rank=r, at_step=45, held=parts[r])
        for r in range(1, size)
    ]
    slots = [
        slot(f"n{(r // NODE + away) % num_nodes}", parts[r], step)
        for step in (43, 44, 45)
        for away in (0, 1)
        for r in range(size)
    ]
    return live, [], (), slots


def scraped(num_nodes):
    """A run whose members a scrape tells one by one."""
    nodes = [(f"node-{number}", NODE) for number in range(num_nodes)]
    return tallied(1, nodes=nodes, max_dp=NODE * num_nodes)


def num_parameters(config):
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())
