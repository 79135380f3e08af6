import math
import random

import pytest
from counted import growth, lines_run
from drawn_layouts import draw_layout, draw_model, holdings
from sized import replicated_by_eight

from remesh.parallel.state.fragments import Fragment, cover_problems, whole
from remesh.parallel.state.reshard import HeldFragment, by_name
from remesh.parallel.state.writers import writes


def held(sizes, holders, dtype="float32"):
    return [
        HeldFragment(fragment=whole(name, shape, dtype), holders=holders)
        for name, shape in sizes.items()
    ]


def loads(helds, writers):
    written = {writer: writes(helds, writer) for writer in writers}
    assert cover_problems(box for boxes in written.values() for box in boxes) == ()
    return written, [sum(box.num_bytes for box in boxes) for boxes in written.values()]


def model(vocab=50_000, width=96, layers=8):
    sizes = {"embedding": (vocab, width)}
    for layer in range(layers):
        sizes[f"layers.{layer}.norm"] = (width,)
        sizes[f"layers.{layer}.up"] = (4 * width, width)
        sizes[f"layers.{layer}.down"] = (width, 4 * width)
    return sizes


@pytest.mark.parametrize("num_writers", [1, 2, 3, 4, 7, 8, 64])
def test_loads_are_even_though_one_embedding_dominates(num_writers):
    written, loads_bytes = loads(held(model(), tuple(range(num_writers))), range(num_writers))
    assert max(loads_bytes) <= 1.06 * min(loads_bytes)
    assert sum(loads_bytes) == sum(4 * math.prod(shape) for shape in model().values())
    num_boxes = sum(len(boxes) for boxes in written.values())
    assert num_boxes <= len(model()) + num_writers - 1
    cut = [box for boxes in written.values() for box in boxes if not box.is_whole]
    assert all(box.sizes[1:] == box.global_shape[1:] for box in cut)
    assert not any("norm" in box.name for box in cut)


def test_a_tensor_of_one_long_row_is_cut_within_the_row():
    for shape in [(1, 10_000), (1, 3, 4_000), (3, 5_000)]:
        _, loads_bytes = loads(held({"w": shape}, (0, 1, 2, 3)), range(4))
        assert max(loads_bytes) <= 1.06 * min(loads_bytes)


def test_less_than_there_are_writers_is_written_once_all_the_same():
    helds = held({"step": (), "scale": (1,), "none": (0, 4)}, tuple(range(8)))
    written, _ = loads(helds, range(8))
    assert sorted(box.name for boxes in written.values() for box in boxes) == ["scale", "step"]


def test_what_is_held_alone_is_written_by_its_holder():
    alone = HeldFragment(fragment=whole("w", (4, 4), "float32"), holders=(2,))
    assert writes([alone], 2) == [alone.fragment]
    assert writes([alone], 1) == []


def test_each_rank_decides_from_its_own_fragments_in_any_order():
    """Two tensor-parallel ranks in each of three replicas: halves, and norms that all six hold."""
    helds = held({"norm.0": (64,), "norm.1": (640,)}, tuple(range(6)))
    for tp in (0, 1):
        half = Fragment(
            name="up", global_shape=(60, 8), offsets=(30 * tp, 0), sizes=(30, 8), dtype="float32"
        )
        helds.append(HeldFragment(fragment=half, holders=tuple(range(tp, 6, 2))))
    written, loads_bytes = loads(helds, range(6))
    assert max(loads_bytes) <= 1.1 * min(loads_bytes)
    for rank in range(6):
        own = [one for one in reversed(helds) if rank in one.holders]
        assert sorted(map(str, writes(own, rank))) == sorted(map(str, written[rank]))


def test_dtypes_weigh_by_their_bytes():
    helds = held({"master": (1000, 8)}, (0, 1, 2)) + held({"w": (1000, 8)}, (0, 1, 2), "bfloat16")
    _, loads_bytes = loads(helds, range(3))
    assert max(loads_bytes) <= 1.06 * min(loads_bytes)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_layout_each_byte_is_written_once_by_one_who_has_it(seed):
    rng = random.Random(seed)
    for _ in range(5):
        blocks = draw_model(rng)
        spread = holdings(blocks, draw_layout(rng, len(blocks)))
        helds = [one for of_name in by_name(spread).values() for one in of_name]
        written, _ = loads(helds, spread)
        for rank, boxes in written.items():
            own = {box: [part for part in spread[rank] if part.name == box.name] for box in boxes}
            assert all(any(part.meet(box) == box for part in own[box]) for box in boxes)


def test_a_fragment_costs_the_same_among_thousands():
    assert growth(lambda num: lines_run(writes, replicated_by_eight(num), 3), 500, 8000) < 1.5
