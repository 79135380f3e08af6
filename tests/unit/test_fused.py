import itertools
import random
from collections import Counter

import numpy as np
import pytest

from remesh.parallel.files.fused import Fused
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.state.fragments import Fragment, cover_problems, whole
from remesh.parallel.state.reshard import by_name, reshard

GATE_UP = Fused(name="gate_up", parts={"gate": 4, "up": 4})


def rows(fused, start, stop, width=2, name=None):
    num_rows = fused.parts[name] if name else fused.num_rows
    return Fragment(
        name=name or fused.name,
        global_shape=(num_rows, width),
        offsets=(start, 0),
        sizes=(stop - start, width),
        dtype="float32",
    )


def labels(fused):
    """What each row of the fused tensor is: the name of its part and its row in there."""
    fragment = whole(fused.name, (fused.num_rows, 2), "float32")
    return " ".join(
        f"{piece.part.name}{row}"
        for piece in fused.split(fragment)
        for row in range(piece.part.offsets[0], piece.part.offsets[0] + piece.part.sizes[0])
    )


def test_parts_stand_one_below_the_other():
    assert labels(GATE_UP) == "gate0 gate1 gate2 gate3 up0 up1 up2 up3"


def test_qkv_interleaved_per_head():
    """Two heads of two rows each: q, k and v of head 0, then those of head 1."""
    qkv = Fused(name="query_key_value", parts={"q": 4, "k": 4, "v": 4}, groups=2)
    assert labels(qkv) == "q0 q1 k0 k1 v0 v1 q2 q3 k2 k3 v2 v3"


def test_qkv_interleaved_per_group_of_heads_that_share_a_key():
    qkv = Fused(name="query_key_value", parts={"q": 8, "k": 2, "v": 2}, groups=2)
    assert labels(qkv) == "q0 q1 q2 q3 k0 v0 q4 q5 q6 q7 k1 v1"


def test_a_fragment_across_parts_is_split_where_they_meet():
    pieces = GATE_UP.split(rows(GATE_UP, 3, 6))
    assert [(str(piece.fused), str(piece.part)) for piece in pieces] == [
        ("gate_up[3:4, 0:2]", "gate[3:4, 0:2]"),
        ("gate_up[4:6, 0:2]", "up[0:2, 0:2]"),
    ]
    assert [piece.part.global_shape for piece in pieces] == [(4, 2), (4, 2)]
    assert GATE_UP.split(rows(GATE_UP, 3, 3)) == []


def test_a_logical_fragment_is_found_in_the_fused_tensor():
    qkv = Fused(name="qkv", parts={"q": 4, "k": 4, "v": 4}, groups=2)
    pieces = qkv.join(rows(qkv, 1, 4, name="k"))
    assert [(str(piece.part), str(piece.fused)) for piece in pieces] == [
        ("k[1:2, 0:2]", "qkv[3:4, 0:2]"),
        ("k[2:4, 0:2]", "qkv[8:10, 0:2]"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_joining_what_was_split_gives_the_same_pieces(seed):
    rng = random.Random(seed)
    groups = rng.randint(1, 4)
    fused = Fused(
        name="f",
        parts={name: groups * rng.randint(1, 3) for name in "abc"[: rng.randint(1, 3)]},
        groups=groups,
    )
    cuts = sorted({0, fused.num_rows, *rng.choices(range(fused.num_rows), k=3)})
    pieces = [
        piece
        for start, stop in itertools.pairwise(cuts)
        for piece in fused.split(rows(fused, start, stop))
    ]
    for side in ("fused", "part"):
        assert cover_problems(getattr(piece, side) for piece in pieces) == ()
    assert [piece for p in pieces for piece in fused.join(p.part)] == pieces


def test_ranks_that_fuse_their_shares_reshard_by_what_the_rows_mean():
    """Each of two ranks holds its half of gate above its half of up."""
    of_ranks = Fused(name="gate_up", parts=GATE_UP.parts, groups=2)
    assert labels(of_ranks) == "gate0 gate1 up0 up1 gate2 gate3 up2 up3"
    values = np.array([[row, row + 10] for row in (0, 1, 100, 101, 2, 3, 102, 103)], np.float32)
    holdings = {rank: of_ranks.split(rows(of_ranks, 4 * rank, 4 * rank + 4)) for rank in (0, 1)}
    have = by_name({rank: [piece.part for piece in held] for rank, held in holdings.items()})

    def local(num_ranks, rank):
        """What `rank` of `num_ranks` holds in its own fused tensor, moved box by box."""
        target = Fused(name="gate_up", parts=GATE_UP.parts, groups=num_ranks)
        want = rows(target, 8 // num_ranks * rank, 8 // num_ranks * (rank + 1))
        made = np.full(want.sizes, -1, np.float32)
        wanted = [piece.part for piece in target.split(want)]
        for move in reshard(have, wanted, 9):
            (read,), (write,) = of_ranks.join(move.box), target.join(move.box)
            at = slice(read.fused.offsets[0], read.fused.offsets[0] + read.fused.sizes[0])
            made[want.slices(write.fused)] = values[at]
        return made[:, 0].tolist()

    assert local(1, 0) == [0, 1, 2, 3, 100, 101, 102, 103]
    assert local(2, 1) == [2, 3, 102, 103]
    assert [local(4, rank) for rank in range(4)] == [[i, 100 + i] for i in range(4)]


def test_columns_and_biases_are_carried_along():
    columns = Fragment(
        name="gate_up", global_shape=(8, 6), offsets=(2, 3), sizes=(4, 2), dtype="bfloat16"
    )
    assert [(p.part.offsets, p.part.sizes, p.part.dtype) for p in GATE_UP.split(columns)] == [
        ((2, 3), (2, 2), "bfloat16"),
        ((0, 3), (2, 2), "bfloat16"),
    ]
    bias = whole("gate_up", (8,), "float32")
    assert Counter(piece.part.global_shape for piece in GATE_UP.split(bias)) == {(4,): 2}


def test_a_description_that_does_not_fit_is_refused():
    with pytest.raises(LayoutError, match="k has 3 rows, which 2 groups of qkv cannot share"):
        Fused(name="qkv", parts={"q": 4, "k": 3}, groups=2)
    with pytest.raises(LayoutError, match=r"\(6,\) is not part of gate_up of 8 rows"):
        GATE_UP.split(whole("gate_up", (6,), "float32"))
    with pytest.raises(LayoutError, match=r"down.* not part of gate of 4 rows, up of 4"):
        GATE_UP.join(whole("down", (4,), "float32"))
