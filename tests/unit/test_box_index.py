import random

import pytest

from remesh.parallel.state.box_index import BoxIndex
from remesh.parallel.state.fragments import Fragment, whole


def draw_box(rng, shape):
    """Mostly thin boxes, now and then an empty one or the whole tensor."""
    if rng.random() < 0.05:
        return whole("w", shape, "float32")
    sizes = tuple(rng.randint(0, rng.choice([2, 2, 3, extent])) for extent in shape)
    offsets = tuple(rng.randint(0, max(0, n - s)) for n, s in zip(shape, sizes, strict=True))
    return Fragment(name="w", global_shape=shape, offsets=offsets, sizes=sizes, dtype="float32")


@pytest.mark.parametrize("shape", [(), (40,), (16, 16), (2, 60), (60, 2), (6, 7, 8)])
def test_it_finds_what_comparing_with_each_finds_by_offset(shape):
    rng = random.Random(len(shape))
    for num_boxes in (0, 1, 9, 150):
        fragments = [draw_box(rng, shape) for _ in range(num_boxes)]
        index = BoxIndex(fragments)
        for _ in range(20):
            want = draw_box(rng, shape)
            found = index.meeting(want)
            assert sorted(number for number, _ in found) == [
                number for number, fragment in enumerate(fragments) if want.meet(fragment)
            ]
            assert all(common == want.meet(fragments[number]) for number, common in found)
            offsets = [fragments[number].offsets for number, _ in found]
            assert offsets == sorted(offsets)
