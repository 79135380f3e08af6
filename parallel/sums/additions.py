"""In which order nodes of all ranks become one sum: whatever they are, and wherever they lie."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from remesh.parallel.plan.dealing import Dealing
from remesh.parallel.plan.leaves import LeafTree, push

T = TypeVar("T")


def add_up(
    dealing: Dealing,
    nodes: Sequence[tuple[int, range]],
    values: Sequence[T],
    add: Callable[[T, T], T],
) -> T:
    """The sum of `values`, which are of these `nodes`, each a member's and a span of leaves."""
    parts: list[list[tuple[range, T]]] = [[] for _ in range(dealing.parts)]
    found = sorted(zip(nodes, values, strict=True), key=lambda node: node[0][1].start)
    for (member, span), value in found:
        push(parts[dealing.part(member)], (span, value), add, dealing.tree)
    return sum_of_parts(parts, add)


def sum_of_parts(parts: Sequence[Sequence[tuple[range, T]]], add: Callable[[T, T], T]) -> T:
    """The parts of a gradient, each added up to its root, added up by an aligned tree."""
    stack: list[tuple[range, T]] = []
    tree = LeafTree(num_leaves=len(parts))
    for number, [(_, root)] in enumerate(parts):
        push(stack, (range(number, number + 1), root), add, tree)
    [(_, total)] = stack
    return total
