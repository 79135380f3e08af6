"""What the referee of a strict mesh says to what its ranks start, wait for and leave."""

from collections import Counter

import pytest

from remesh.parallel.groups.strict.described import Described
from remesh.parallel.groups.strict.referee import Referee

MAIN = 1  # a thread


class Table:
    """A referee, the ranks of a mesh at it, and all that it has told them."""

    def __init__(self, size):
        self.referee = Referee()
        self.told = []
        self.form("world", range(size))

    def form(self, group, ranks):
        for place, rank in enumerate(ranks):
            self.told += self.referee.joins(rank, group, place)

    def starts(self, rank, described, group="world", thread=MAIN):
        self.told += self.referee.starts(rank, thread, group, described)

    def waits(self, rank, number, group="world", thread=MAIN):
        self.told += self.referee.waits(rank, thread, group, number)

    @property
    def gone_on(self):
        """How many operations of each rank, over all groups."""
        return dict(Counter(answer.rank for answer in self.told if answer.kind == "go"))

    @property
    def wrong(self):
        """Whom it has told that the mesh is over, and the one text of why."""
        told = [answer for answer in self.told if answer.kind == "wrong"]
        [text] = {answer.text for answer in told}
        return [answer.rank for answer in told], text


def all_reduce(place, size, elements=8, dtype="float32", kind="all_reduce sum"):
    each = tuple(0 if other == place else elements for other in range(size))
    peers = tuple(other for other in range(size) if other != place)
    return Described(kind=kind, dtype=dtype, peers=peers, sends=each, receives=each)


def to_one(kind, peer, size, elements=8):
    there = tuple(elements if place == peer else 0 for place in range(size))
    nothing = (0,) * size
    ways = (there, nothing) if kind == "send" else (nothing, there)
    return Described(kind=kind, dtype="float32", peers=(peer,), sends=ways[0], receives=ways[1])


def broadcast(place, root, size, elements=8):
    peers = tuple(other for other in range(size) if other != place)
    there = tuple(elements if place == root != other else 0 for other in range(size))
    back = tuple(elements if place != root == other else 0 for other in range(size))
    return Described(kind="broadcast", dtype="float32", peers=peers, sends=there, receives=back)


def all_to_all(place, sends, receives):
    peers = tuple(other for other in range(len(sends)) if other != place)
    sizes = {"sends": tuple(sends), "receives": tuple(receives)}
    return Described(kind="all_to_all", dtype="float32", peers=peers, **sizes)


def test_an_operation_goes_on_once_all_its_ranks_have_it():
    table = Table(3)
    for rank in (2, 0):
        table.starts(rank, all_reduce(rank, 3))
    assert table.told == []
    table.starts(1, all_reduce(1, 3))
    assert table.gone_on == {0: 1, 1: 1, 2: 1}


def test_operations_go_on_in_the_order_in_which_they_were_started():
    table = Table(3)
    table.starts(0, to_one("send", 1, 3))
    table.starts(0, to_one("send", 2, 3))
    table.starts(2, to_one("receive", 0, 3))
    assert table.told == []
    table.starts(1, to_one("receive", 0, 3))
    assert table.gone_on == {0: 2, 1: 1, 2: 1}


def test_who_is_ahead_by_many_operations_is_caught_up_with():
    table = Table(2)
    for _ in range(5):
        table.starts(0, all_reduce(0, 2))
    for _ in range(5):
        table.starts(1, all_reduce(1, 2))
    assert table.gone_on == {0: 5, 1: 5}


@pytest.mark.parametrize(
    ("here", "there", "difference"),
    [
        (all_reduce(0, 2), all_reduce(1, 2, kind="all_reduce max"), "operation"),
        (all_reduce(0, 2), all_reduce(1, 2, dtype="float64"), "dtype"),
        (all_reduce(0, 2), all_reduce(1, 2, 9), "size"),
        (all_reduce(0, 2), to_one("receive", 0, 2), "operation"),
        (to_one("send", 1, 2), to_one("receive", 0, 2, 9), "size"),
        (to_one("send", 1, 2), to_one("send", 0, 2), "operation"),  # they cross
        (to_one("receive", 1, 2), to_one("receive", 0, 2), "operation"),
        (all_to_all(0, [0, 5], [0, 3]), all_to_all(1, [3, 0], [4, 0]), "size"),
        (all_to_all(0, [0, 5], [0, 3]), all_to_all(1, [2, 0], [5, 0]), "size"),
        (broadcast(0, 0, 2), broadcast(1, 1, 2), "peers"),
    ],
)
def test_the_first_difference_is_told_to_all_with_both_sequences(here, there, difference):
    table = Table(3)
    table.form("pair", (2, 0))  # place 0 is rank 2
    table.starts(2, all_reduce(0, 2, 64), "pair")
    table.starts(2, here, "pair")
    table.starts(0, all_reduce(1, 2, 64), "pair")
    assert table.gone_on == {0: 1, 2: 1}
    table.starts(0, there, "pair")
    ranks, text = table.wrong
    assert ranks == [0, 1, 2]
    assert f"ranks 0 and 2 differ in the {difference} that is next in the group pair" in text
    for rank, own in ((0, there), (2, here)):
        assert f"rank {rank} has operation 2, {own.text([2, 0])}" in text
        assert f"rank {rank} has started 1 all_reduce sum of 64 float32 with" in text


def test_what_moves_nothing_has_a_text_too():
    nothing = all_to_all(0, [0, 0], [0, 0])
    assert nothing.text([4, 5]) == "all_to_all of 0 float32 with 5"
    assert to_one("send", 1, 2).text([4, 5]) == "send of 8 float32 to 5"
    uneven = all_to_all(0, [0, 5], [0, 3])
    assert uneven.text([4, 5]) == "all_to_all of [0, 5] for [0, 3] float32 with 5"


def test_all_to_alls_that_fit_go_on_though_each_has_other_sizes():
    table = Table(2)
    table.starts(0, all_to_all(0, [0, 5], [0, 3]))
    table.starts(1, all_to_all(1, [3, 0], [5, 0]))
    assert table.gone_on == {0: 1, 1: 1}


def test_a_broadcast_waits_for_all_its_receivers():
    table = Table(3)
    for rank in (2, 1):
        table.starts(rank, broadcast(rank, 0, 3))
    assert table.told == []
    table.starts(0, broadcast(0, 0, 3))
    assert table.gone_on == {0: 1, 1: 1, 2: 1}


def test_what_one_rank_skips_and_the_others_have_is_the_difference():
    """Two swapped collectives and a forgotten one look alike: the first that differs is named."""
    table = Table(3)
    for rank in (0, 2):
        table.starts(rank, all_reduce(rank, 3, 8))
        table.starts(rank, all_reduce(rank, 3, 9))
    table.starts(1, all_reduce(1, 3, 9))
    _, text = table.wrong
    assert "differ in the size" in text
    assert "operation 1, all_reduce sum of 9 float32 with 0, 2" in text


def test_after_the_first_verdict_nothing_more_is_told():
    table = Table(2)
    table.starts(0, all_reduce(0, 2))
    table.starts(1, all_reduce(1, 2, 9))
    before = list(table.told)
    table.starts(0, all_reduce(0, 2))
    table.starts(1, all_reduce(1, 2))
    table.waits(0, 1)
    table.told += table.referee.accuses("again")
    assert table.told == before


def test_who_comes_late_hears_the_verdict_too():
    table = Table(2)
    table.told += table.referee.accuses("rank 0: it is over")
    table.form("pair", (2, 1))
    assert table.wrong == ([0, 1, 2, 1], "rank 0: it is over")


def test_a_send_whose_receiver_waits_elsewhere_is_named():
    """One waits in the pipe, the other in the world: no group sees it whole."""
    table = Table(2)
    table.form("pipe", (0, 1))
    table.starts(0, to_one("send", 1, 2), "pipe")
    table.waits(0, 1, "pipe")
    table.starts(1, all_reduce(1, 2))
    assert table.told == []
    table.waits(1, 1)
    ranks, text = table.wrong
    assert ranks == [0, 1]
    assert "rank 0 waits in the group pipe for its operation 1, send of 8 float32 to 1" in text
    assert "rank 1 waits in the group world for its operation 1, all_reduce" in text
    started = "rank 0 has started 1 send of 8 float32 to 1; rank 1 has started nothing"
    assert f"In the group pipe {started}" in text


def test_who_has_not_waited_may_still_start_the_other_half():
    table = Table(2)
    table.form("pipe", (0, 1))
    table.starts(0, to_one("send", 1, 2), "pipe")
    table.waits(0, 1, "pipe")
    table.starts(1, all_reduce(1, 2))
    table.starts(1, to_one("receive", 0, 2), "pipe")
    table.waits(1, 1)
    table.starts(0, all_reduce(0, 2))
    assert table.gone_on == {0: 2, 1: 2}


def test_three_sends_in_a_circle_are_named():
    """Each pair agrees, and no send is ever received."""
    table = Table(3)
    for rank in range(3):
        table.starts(rank, to_one("send", (rank + 1) % 3, 3))
        table.starts(rank, to_one("receive", (rank + 2) % 3, 3))
        table.waits(rank, 2)
    ranks, text = table.wrong
    assert ranks == [0, 1, 2]
    for rank in range(3):
        assert f"rank {rank} waits in the group world for its operation 1, send" in text


def test_two_ranks_that_wait_in_two_groups_in_turn_are_named_while_a_third_is_busy():
    table = Table(3)
    for group in ("one", "other"):
        table.form(group, (0, 1))
    for rank, group in ((0, "one"), (1, "other")):
        table.starts(rank, all_reduce(rank, 2), group)
        table.waits(rank, 1, group)
    ranks, text = table.wrong
    assert ranks == [0, 1, 2]
    assert "nobody can go on" in text


def test_a_rank_that_waits_is_not_accused_as_long_as_one_of_its_threads_is_free():
    table = Table(2)
    table.form("pipe", (0, 1))
    table.starts(1, all_reduce(1, 2), thread=MAIN)
    table.starts(1, to_one("receive", 0, 2), "pipe", thread=2)
    table.starts(0, to_one("send", 1, 2), "pipe")
    table.starts(0, to_one("send", 1, 2), "pipe")
    table.waits(0, 2, "pipe")
    table.waits(1, 1, thread=MAIN)
    assert "wrong" not in {answer.kind for answer in table.told}
    table.waits(1, 1, "pipe", thread=2)  # that one has gone on already
    assert "wrong" not in {answer.kind for answer in table.told}
    table.starts(1, to_one("receive", 0, 2), "pipe", thread=2)
    table.starts(0, all_reduce(0, 2))
    assert table.gone_on == {0: 3, 1: 3}


def test_who_waits_for_one_that_leaves_is_told_whom_and_for_what():
    table = Table(3)
    table.starts(0, to_one("send", 1, 3))
    table.told += table.referee.leaves(1, "world")
    [lost] = table.told
    assert (lost.rank, lost.kind, lost.group) == (0, "lost", "world")
    assert "rank 1 has left the group world without its part of rank 0's operation 1, send" in (
        lost.text
    )


def test_so_is_who_starts_something_with_it_afterwards_and_a_dead_rank_leaves_all_its_groups():
    table = Table(3)
    table.form("pipe", (1, 2))
    table.told += table.referee.goes(2)
    table.starts(1, to_one("receive", 1, 2), "pipe")
    table.starts(0, all_reduce(0, 3))
    table.waits(0, 1)
    assert [(answer.rank, answer.kind, answer.group) for answer in table.told] == [
        (1, "lost", "pipe"),
        (0, "lost", "world"),
    ]


def test_what_all_have_started_goes_on_though_one_has_left_by_then():
    table = Table(2)
    for rank in range(2):
        table.starts(rank, all_reduce(rank, 2))
    table.told += table.referee.leaves(0, "world")
    assert {answer.kind for answer in table.told} == {"go"}
    table.waits(1, 1)
    assert {answer.kind for answer in table.told} == {"go"}


def test_what_a_rank_has_started_and_left_is_not_gone_on_with():
    table = Table(2)
    table.starts(1, all_reduce(1, 2))
    table.told += table.referee.leaves(1, "world")
    table.starts(0, all_reduce(0, 2))
    table.told += table.referee.leaves(0, "world")
    assert [(answer.rank, answer.kind) for answer in table.told] == [(0, "lost")]


def test_who_has_left_a_group_waits_in_it_no_longer():
    table = Table(2)
    table.form("pipe", (0, 1))
    table.starts(1, to_one("receive", 0, 2), "pipe")
    table.waits(1, 1, "pipe")
    table.told += table.referee.leaves(1, "pipe")
    table.starts(0, all_reduce(0, 2))
    table.waits(0, 1)
    assert table.told == []


def test_who_waits_for_one_that_has_left_is_told_so_and_nobody_is_accused():
    table = Table(2)
    table.form("pipe", (0, 1))
    table.told += table.referee.leaves(1, "pipe")
    table.starts(1, all_reduce(1, 2))
    table.waits(1, 1)
    table.starts(0, to_one("send", 1, 2), "pipe")
    table.waits(0, 1, "pipe")
    assert [(answer.rank, answer.kind) for answer in table.told] == [(0, "lost")]
