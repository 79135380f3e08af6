import itertools
import math

import pytest
from counted import growth, lines_run
from hypothesis import given, settings
from hypothesis import strategies as st
from sized import columns, slices

from remesh.parallel.state.fragments import Fragment, cover_problems, flat_boxes, whole


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


@st.composite
def boxes(draw):
    """A few boxes of one tensor, wherever they lie."""
    places = draw(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=5))
    shape = (3, 4)
    parts = []
    for row, column, rows, width in places:
        offsets = min(row, 2), column
        sizes = min(rows, 3 - offsets[0]), min(width + 1, 4 - column)
        parts.append(box(offsets, sizes, shape=shape))
    return parts


@settings(max_examples=120)
@given(boxes())
def test_boxes_cover_a_tensor_when_each_element_is_in_one_of_them(parts):
    counts = [
        sum(element in in_place(part) for part in parts)
        for element in itertools.product(range(3), range(4))
    ]
    assert (cover_problems(parts) == ()) == (set(counts) == {1})


def in_place(part):
    """The elements of a box."""
    spans = zip(part.offsets, part.sizes, strict=True)
    return set(itertools.product(*(range(start, start + size) for start, size in spans)))


def test_as_many_elements_as_there_are_may_still_be_the_wrong_ones():
    parts = [box((0, 0), (3, 6)), box((2, 0), (1, 6))]
    assert cover_problems(parts) == ("w[0:3, 0:6] overlaps w[2:3, 0:6]",)
    many = [box((n,), (1,), shape=(5000,)) for n in range(4999)] + [box((7,), (1,), shape=(5000,))]
    assert cover_problems(many) == ("w has 5000 of its 5000 elements, some of them twice",)
    assert cover_problems([box((0,) * 9, (1,) * 9, shape=(1,) * 9)]) == (
        "w has 9 dimensions, not up to 8",
    )


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


@pytest.mark.parametrize("parts", [slices, columns])
def test_the_check_of_a_part_costs_the_same_among_thousands(parts):
    assert growth(lambda num: lines_run(cover_problems, parts(num)), 256, 4096) < 1.5
    assert cover_problems(parts(4096)) == ()


def elements(shape, box_offsets, local_shape, start, stop):
    """For each element of [start, stop) that is no padding, its place in the full tensor."""
    places = itertools.product(*map(range, local_shape))
    chosen = list(itertools.islice(places, start, stop))
    moved = [tuple(o + i for o, i in zip(box_offsets, place, strict=True)) for place in chosen]
    return [place for place in moved if not place or place[0] < shape[0]]


def in_box(flat_box):
    spans = [
        range(offset, offset + size)
        for offset, size in zip(flat_box.offsets, flat_box.sizes, strict=True)
    ]
    return list(itertools.product(*spans))


def fewest(places):
    """The smallest number of boxes that a run of places can be cut into, tried one by one."""
    best = [0]
    for end in range(1, len(places) + 1):
        best.append(1 + min(best[start] for start in range(end) if is_box(places[start:end])))
    return best[-1]


def is_box(places):
    return math.prod(
        last - first + 1 for first, last in zip(places[0], places[-1], strict=True)
    ) == len(places) and all(
        first <= last for first, last in zip(places[0], places[-1], strict=True)
    )


@pytest.mark.parametrize(
    ("shape", "box_offsets", "local_shape"),
    [
        ((), (), ()),
        ((7,), (0,), (7,)),
        ((9,), (3,), (4,)),
        ((4, 6), (0, 0), (4, 6)),
        ((4, 6), (0, 2), (4, 3)),
        ((5, 3), (3, 0), (3, 3)),
        ((5, 3), (6, 0), (3, 3)),
        ((5, 1), (1, 0), (3, 1)),
        ((4, 3, 4), (2, 0, 1), (2, 3, 2)),
        ((3, 1, 4), (0, 0, 0), (3, 1, 4)),
        ((2, 3, 2), (1, 0, 0), (2, 3, 2)),
        ((0, 3), (0, 0), (0, 3)),
    ],
)
def test_every_range_of_a_flattened_share_is_the_fewest_boxes(shape, box_offsets, local_shape):
    num_elements = math.prod(local_shape)
    for start, stop in itertools.combinations_with_replacement(range(num_elements + 3), 2):
        boxes = flat_boxes(shape, box_offsets, local_shape, start, stop)
        places = elements(shape, box_offsets, local_shape, start, stop)
        assert [place for flat_box in boxes for place in in_box(flat_box)] == places
        assert len(boxes) == fewest(places) <= max(1, 2 * len(shape) - 1)
        at = start
        for flat_box in boxes:
            assert flat_box.flat_offset == at
            at += flat_box.num_elements


def test_a_box_knows_its_place_in_another_and_what_they_share():
    outer, inner = box((1, 2), (3, 4)), box((2, 0), (2, 5))
    assert outer.meet(inner) == inner.meet(outer) == box((2, 2), (2, 3))
    assert outer.slices(box((2, 2), (2, 3))) == (slice(1, 3), slice(0, 3))
    assert outer.meet(box((0, 0), (1, 6))) is None
    assert outer.meet(box((1, 2), (0, 4))) is None
    scalar = whole("step", (), "int64")
    assert scalar.meet(scalar) == scalar
    assert str(outer) == "w[1:4, 2:6]"


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float64", 8), ("bfloat16", 2), ("float8_e4m3fn", 1), ("uint8", 1), ("bool", 1)],
)
def test_bytes_follow_from_the_name_of_the_dtype(dtype, size):
    assert whole("w", (4, 6), dtype).num_bytes == 24 * size
