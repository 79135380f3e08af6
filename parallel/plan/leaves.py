"""Leaves: how a global batch is cut so that its gradient has the same bits at every dp.

The global batch is cut into `num_leaves` leaves of equally many consecutive microbatches. Whoever
computes a leaf adds its microbatches in order; a tree over the leaves adds the leaves. Both orders
are fixed by the job and not by the number of ranks, so ranks may come and go.

The tree takes its shape from the largest dp: the leaves are cut into that many segments, each
segment is added up by an aligned binary tree over its leaves, and the segments by one over all
segments. So at the largest dp a rank has one segment, at half of it a pair of siblings: one node to
exchange, the bytes of an all-reduce. At any other dp a rank has more, and is dealt large ones, so
that they are few (node_deals.py): two or three as a rule, five at the worst that was counted (480
leaves on 5 of 32 ranks). The alternative, neighbouring leaves for every rank, needs no choice, and
up to eight nodes.

A node of the tree is written as the span of leaves below it, a `range`. Whoever owns some leaves
adds them up to nodes by itself, and nodes of all ranks together add up to the root with the very
same additions. Ranks may own uneven numbers of leaves, or none.

The alternative, dealing single microbatches and using a plain all_reduce, has the same bytes and
gives other bits at every number of ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from remesh.parallel.plan.book.divisors import divisors
from remesh.parallel.plan.errors import LayoutError

T = TypeVar("T")

WANTED_EFFICIENCY = 0.9


def choose_num_leaves(num_microbatches: int, max_dp: int, together: int = 1) -> int:
    """Number of leaves of a global batch, for a job of up to `max_dp` replicas.

    Where `together` replicas always compute at the same time they count as one, with as many
    leaves at a time.

    The smallest multiple of `max_dp` that divides `num_microbatches` and keeps an efficiency of at
    least 90 % at every dp up to `max_dp`; if there is none, the divisor with the best efficiency at
    its worst dp, the smallest of equals.

    Raises: LayoutError if either count is below 1.
    """
    if num_microbatches < 1 or max_dp < 1:
        raise LayoutError(
            f"{num_microbatches} microbatches on up to {max_dp} replicas: both must be 1 or more"
        )
    if together > 1:
        return together * choose_num_leaves(num_microbatches // together, max_dp // together)
    choices = divisors(num_microbatches)
    for num_leaves in choices:
        fits = num_leaves % max_dp == 0
        if fits and worst_efficiency(num_leaves, max_dp) >= WANTED_EFFICIENCY:
            return num_leaves
    return max(choices, key=lambda n: (worst_efficiency(n, max_dp), -n))


def efficiency(num_leaves: int, dp: int) -> float:
    """Share of the replicas' time spent on leaves, in (0, 1]: the fullest one sets the pace."""
    fullest = -(-num_leaves // dp)
    return num_leaves / (dp * fullest)


def worst_efficiency(num_leaves: int, max_dp: int) -> float:
    return min(efficiency(num_leaves, dp) for dp in range(1, max_dp + 1))


def leaves_each(num_leaves: int, dp: int, lengths: Sequence[int] = ()) -> tuple[int, ...]:
    """How many leaves each replica gets: as `lengths` says, or else as evenly as can be.

    Raises: LayoutError if the lengths are not of so many replicas, or do not add up.
    """
    if not lengths:
        return tuple(stop - start for start, stop in pairwise(_starts(num_leaves, dp)))
    if len(lengths) != dp or sum(lengths) != num_leaves or min(lengths) < 0:
        raise LayoutError(
            f"{tuple(lengths)} leaves each do not deal {num_leaves} leaves to {dp} replicas; use "
            f"{dp} counts that add up to {num_leaves}"
        )
    return tuple(lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafTree:
    """Which additions make one gradient of those of all leaves: the same whoever does them.

    Segments are as even as can be; where their number is halved they lie in pairs of the same
    leaves. More of them than leaves are as many.
    """

    num_leaves: int
    num_segments: int = 1

    def by_runs(self, run: int) -> "LeafTree":
        """The tree over runs of so many leaves, as if each were one."""
        segments = max(1, self.num_segments // run)
        return LeafTree(num_leaves=self.num_leaves // run, num_segments=segments)

    def join(self, left: range, right: range) -> range | None:
        """The node whose two children are `left` and `right`, None if they are not siblings."""
        if left.stop != right.start or not right:
            return None
        first, after = self._segment(left.start), self._segment(right.stop - 1) + 1
        if after - first == 1:
            start = self._start(first)
            siblings = _are_siblings(
                range(left.start - start, left.stop - start),
                right.stop - start,
                self._start(after) - start,
            )
        else:
            middle = self._segment(right.start)
            ends = [self._start(segment) for segment in (first, middle, after)]
            are_whole = ends == [left.start, right.start, right.stop]
            siblings = are_whole and _are_siblings(range(first, middle), after, self._num_segments)
        return range(left.start, right.stop) if siblings else None

    def halves(self, node: range) -> tuple[range, range]:
        """The two children of a node of more than one leaf."""
        first, after = self._segment(node.start), self._segment(node.stop - 1) + 1
        if after - first == 1:
            middle = node.start + _half(len(node))
        else:
            middle = self._start(first + _half(after - first))
        return range(node.start, middle), range(middle, node.stop)

    def nodes(self, leaves: Iterable[int]) -> tuple[range, ...]:
        """The fewest nodes that make up these leaves, all from left to right."""
        stack: list[tuple[range, None]] = []
        for leaf in leaves:
            push(stack, (range(leaf, leaf + 1), None), lambda *_: None, self)
        return tuple(node for node, _ in stack)

    def num_nodes(self, num_first: int) -> int:
        """How many nodes the first leaves make up."""
        if num_first == self.num_leaves:
            return 1
        segment = self._segment(num_first)
        return segment.bit_count() + (num_first - self._start(segment)).bit_count()

    @property
    def _num_segments(self) -> int:
        return min(self.num_segments, self.num_leaves)

    def _start(self, segment: int) -> int:
        return -(-segment * self.num_leaves // self._num_segments)

    def _segment(self, leaf: int) -> int:
        """The one with this leaf."""
        return leaf * self._num_segments // self.num_leaves


def push(
    stack: list[tuple[range, T]], node: tuple[range, T], add: Callable[[T, T], T], tree: LeafTree
) -> None:
    """Put the next node to the right on the stack and add siblings for as long as there are any.

    Nodes must come from left to right. The stack ends as the root alone when they cover all leaves;
    until then it holds the logarithms of the segments and of the leaves of one at the most, plus 1,
    if there is no gap.
    """
    while stack and (joined := tree.join(stack[-1][0], node[0])):
        _, left = stack.pop()
        node = (joined, add(left, node[1]))
    stack.append(node)


def _starts(length: int, num_parts: int) -> list[int]:
    """Where parts start that are as even as can be, the first one among the longest; and the end.

    Parts of half the number start where every second one does.
    """
    return [-(-part * length // num_parts) for part in range(num_parts + 1)]


def _are_siblings(left: range, stop: int, count: int) -> bool:
    """Whether that and the range after it up to `stop` are, in a binary tree over `count`.

    It is aligned: a node starts at a multiple of a power of two, is that long, and is cut off at
    the end.
    """
    size = len(left)
    is_left_child = size.bit_count() == 1 and left.start % (2 * size) == 0
    return is_left_child and stop == min(left.start + 2 * size, count)


def _half(length: int) -> int:
    """Of a node of such a tree, the length of the left child."""
    return 1 << ((length - 1).bit_length() - 1)
