"""Who gets which nodes of a tree over leaves: as few as can be, since each is a message.

A rank with n nodes sends n + 1 shares of a bucket where an all-reduce sends two. In turns each rank
gets the largest node that can be had for it, whole or out of a larger one that is cut for it. Where
that leaves a rank with many, a deal is tried in which loads need not be even, as long as no rank
has more leaves than the fullest one of an even deal: a step takes as long.

Four nodes, so 2.5 times an all-reduce, are the least that is possible where the largest dp is 32
and 3 or 9 replicas are there, whatever tree has one node for each rank at 32 and its halves: three
ranks with a third of 32 segments have nodes of 8 and of 2 of them and two thirds of one, which two
have in a node at the most, since a third of two segments is left.

The bits do not depend on it: who adds what is not in which order it is added.
"""

from bisect import insort
from collections.abc import Sequence

from remesh.parallel.plan.leaves import LeafTree, leaves_each

_FEW = 2  # nodes: one and a half times an all-reduce

Nodes = tuple[range, ...]


def deal_nodes(tree: LeafTree, counts: Sequence[int]) -> tuple[Nodes, ...]:
    """Nodes for each rank that add up to so many leaves."""
    return _Deal(tree, counts).all_taken()


def deal_evenly(tree: LeafTree, num_ranks: int) -> tuple[Nodes, ...]:
    """Nodes for each rank, of no more leaves than the fullest one has to have."""
    counts = leaves_each(tree.num_leaves, num_ranks)
    even = deal_nodes(tree, counts)
    if max(map(len, even)) <= _FEW:
        return even
    full = deal_nodes(tree, [counts[0]] * num_ranks)
    deals = [even, full] if all(full) else [even]  # who has time to spare has a leaf at least
    return min(deals, key=lambda dealt: max(map(len, dealt)))


class _Deal:
    """What is `left` of a tree, by size and from left to right; what each rank has and wants."""

    def __init__(self, tree: LeafTree, wanted: Sequence[int]) -> None:
        self._tree = tree
        self._wanted = list(wanted)
        self._taken: list[list[range]] = [[] for _ in wanted]
        self._left = {tree.num_leaves: [range(tree.num_leaves)]}
        self._largest: dict[tuple[int, int, int], int] = {}

    def all_taken(self) -> tuple[Nodes, ...]:
        """After the first turn those come first that want most."""
        turn = [number for number, count in enumerate(self._wanted) if count]
        while self._left and turn:
            for number in turn:
                if self._left:
                    node = self._take(self._wanted[number])
                    self._taken[number].append(node)
                    self._wanted[number] -= len(node)
            turn = sorted((n for n in turn if self._wanted[n]), key=lambda n: -self._wanted[n])
        return tuple(tuple(sorted(nodes, key=_start)) for nodes in self._taken)

    def _take(self, most: int) -> range:
        """The largest node of up to so many leaves, out of the smallest ones with such a part."""
        firsts = (nodes[0] for _, nodes in sorted(self._left.items()))
        node = max(firsts, key=lambda node: self._part(node, most))
        size = self._part(node, most)
        self._left[len(node)].remove(node)
        if not self._left[len(node)]:
            del self._left[len(node)]
        while len(node) > size:
            left, right = self._tree.halves(node)
            node, other = (left, right) if self._part(left, most) == size else (right, left)
            insort(self._left.setdefault(len(other), []), other, key=_start)
        return node

    def _part(self, node: range, most: int) -> int:
        """The size of the largest node within it of up to so many leaves."""
        if len(node) <= most:
            return len(node)
        key = node.start, len(node), most
        if key not in self._largest:
            self._largest[key] = max(self._part(half, most) for half in self._tree.halves(node))
        return self._largest[key]


def _start(node: range) -> int:
    return node.start
