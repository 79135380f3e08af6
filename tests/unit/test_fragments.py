import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remesh.parallel.state.fragments import Fragment, cover_problems, whole


def box(offsets, sizes, shape=(4, 6), name="w", dtype="float32"):
    return Fragment(name=name, global_shape=shape, offsets=offsets, sizes=sizes, dtype=dtype)


def test_a_whole_fragment_covers_its_tensor():
    assert cover_problems([whole("w", (4, 6), "float32"), whole("step", (), "int64")]) == ()
    assert whole("w", (4, 6), "float32").is_whole
    assert not box((0, 0), (4, 3)).is_whole


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([box((0, 0), (4, 3))], "w has 12 of its 24 elements"),
        ([box((0, 0), (3, 6)), box((2, 0), (2, 6))], "w[2:4, 0:6] overlaps w[0:3, 0:6]"),
        ([box((0, 0), (4, 6)), box((0, 0), (4, 6))], "w[0:4, 0:6] overlaps w[0:4, 0:6]"),
        ([box((1, 0), (4, 6))], "w[1:5, 0:6] lies outside of its shape (4, 6)"),
        ([box((0, -1), (4, 7))], "w[0:4, -1:6] lies outside of its shape (4, 6)"),
        ([box((0,), (4,))], "w[0:4] lies outside of its shape (4, 6)"),
        (
            [box((0, 0), (4, 3)), box((0, 3), (4, 3), dtype="bfloat16")],
            "the fragments of w disagree on its shape or dtype",
        ),
        ([box((), (), shape=()), box((), (), shape=())], "w[] overlaps w[]"),
    ],
)
def test_what_does_not_cover_exactly_once_is_named(parts, problem):
    found = cover_problems(parts)
    assert len(found) == 1
    assert set(found[0].split(" overlaps ")) == set(problem.split(" overlaps "))


def test_empty_tensors_and_empty_parts_are_legal():
    assert cover_problems([whole("none", (0, 3), "float32")]) == ()
    assert cover_problems([box((0, 0), (4, 6)), box((2, 0), (0, 6))]) == ()


@st.composite
def cuts(draw, extent):
    points = draw(st.sets(st.integers(1, extent - 1), max_size=4)) if extent > 1 else set()
    edges = [0, *sorted(points), extent]
    return list(itertools.pairwise(edges))


@st.composite
def grids(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    parts = [((), ())]
    for extent in shape:
        spans = draw(cuts(extent))
        parts = [
            ((*offsets, start), (*sizes, stop - start))
            for offsets, sizes in parts
            for start, stop in spans
        ]
    return draw(st.permutations([box(offsets, sizes, shape) for offsets, sizes in parts]))


@settings(max_examples=60)
@given(grids(), st.data())
def test_any_grid_covers_and_no_part_can_be_missing_or_doubled(parts, data):
    assert cover_problems(parts) == ()
    assert sum(part.num_elements for part in parts) == math.prod(parts[0].global_shape)
    chosen = data.draw(st.sampled_from(parts))
    rest = [part for part in parts if part != chosen]
    assert not rest or cover_problems(rest)
    assert cover_problems([*parts, chosen])


def test_thousands_of_slices_are_checked_fast():
    parts = [box((row, 0), (1, 8), shape=(4096, 8)) for row in range(4096)]
    started = time.perf_counter()
    assert cover_problems(parts) == ()
    assert time.perf_counter() - started < 0.5
