import pytest

from remesh.parallel.state.fragments import cover_problems, whole
from remesh.parallel.state.panels import panels

WEIGHT = whole("w", (64, 512), "float32")


def columns(boxes):
    return [(box.offsets[-1], box.sizes[-1]) for box in boxes]


def test_a_tensor_is_cut_into_equal_columns():
    cut = panels(WEIGHT)
    assert columns(cut) == [(64 * n, 64) for n in range(8)]
    assert all(box.sizes[0] == 64 for box in cut)
    assert cover_problems(cut) == ()
    assert columns(panels(WEIGHT, 2)) == [(0, 256), (256, 256)]


def test_a_box_is_cut_where_the_full_tensor_would_be():
    box = WEIGHT.part((8, 100), (32, 200))
    assert columns(panels(box)) == [(100, 28), (128, 64), (192, 64), (256, 44)]
    half = WEIGHT.part((0, 256), (64, 256))
    assert panels(half) == panels(WEIGHT)[4:]


@pytest.mark.parametrize(
    "fragment",
    [
        whole("bias", (4096,), "float32"),
        whole("scalar", (), "float32"),
        whole("odd", (4096, 513), "float32"),
        whole("narrow", (10**6, 4), "float32"),
        whole("empty", (0, 512), "float32"),
        WEIGHT.part((3, 0), (1, 512)),
    ],
)
def test_what_gains_nothing_stays_whole(fragment):
    assert panels(fragment) == [fragment]
