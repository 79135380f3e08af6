"""Who computes which leaves of a global batch, and when: pure.

Either in runs: each member of a group has leaves that it can add up by itself to few nodes of the
tree before any message. Or in rounds: neighbouring members compute neighbouring leaves at the same
time, which are reduced together, so that none has to be kept. Members may have different numbers of
leaves, for nodes of different speed: the tree that adds them is the same.

`together` neighbouring members compute neighbouring leaves at the same time in either way, as those
have to that hold all experts of a layer between them. What such members add to experts is one
gradient of a run of leaves: to add them up is a dealing of its own (`by_runs`), with fewer leaves
and fewer members.

Who adds gradients and who deals leaves are two things: where the tokens of a row lie on several
neighbouring members, these have the same leaves, and each computes a part of every one
(`in_parts`). First the leaves of each part are added up, as if there were no other, then the parts:
so a member adds up its own leaves by itself, as one that has all of the tokens does. To add the
parts of a leaf first was the alternative, and a message for each leaf.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.leaves import LeafTree, leaves_each
from remesh.parallel.plan.node_deals import deal_evenly, deal_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """`portions` are the leaves of each member, in the order in which it computes them; `tree` says
    how they are added up.

    Leaf l stands for the leaves [l * unit, (l + 1) * unit) of the global batch. `in_rounds` says
    that the n-th leaves of all members, where they have as many, are neighbours. `parts` neighbours
    have the same leaves.
    """

    tree: LeafTree
    portions: tuple[Sequence[int], ...]
    in_rounds: bool = False
    unit: int = 1
    parts: int = 1

    def leaf(self, number: int | None) -> int | None:
        """The leaf to which one of the global batch belongs."""
        return None if number is None else number // self.unit

    def num_idle(self, member: int) -> int:
        """How often this member takes part in an exchange without a leaf of its own."""
        own = len(self.portions[member])
        return max(map(len, self.portions)) - own if self.in_rounds else int(own == 0)

    def round(self, number: int) -> list[int | None]:
        """The leaf of each member in this round, None of one that only keeps the others company."""
        return [portion[number] if number < len(portion) else None for portion in self.portions]

    def part(self, member: int) -> int:
        """Which part of its leaves this member computes."""
        return member % self.parts

    def in_parts(self, parts: int) -> "Dealing":
        """The same leaves for so many members in the place of each one."""
        portions = tuple(portion for portion in self.portions for _ in range(parts))
        return replace(self, portions=portions, parts=self.parts * parts)

    def by_runs(self, together: int) -> "Dealing":
        """What is added of runs of leaves, by one of `together` neighbouring members."""
        run = max(1, together // self.parts)
        portions = tuple(
            tuple(leaf // run for leaf in portion) for portion in self.portions[::together]
        )
        return Dealing(
            tree=self.tree.by_runs(run),
            portions=portions,
            in_rounds=self.in_rounds,
            unit=self.unit * run,
            parts=max(1, self.parts // together),
        )


def deal_in_runs(
    tree: LeafTree, num_members: int, lengths: Sequence[int] = (), *, together: int = 1
) -> Dealing:
    """`lengths` are the leaves of each member; without them none has more than the fullest one of
    an even deal. A member has few nodes of the tree.

    Raises: LayoutError if so many cannot be dealt so.
    """
    counts = _runs_each(tree, num_members, lengths, together)
    runs = tree.by_runs(together)
    dealt = deal_nodes(runs, counts) if lengths else deal_evenly(runs, len(counts))
    portions = tuple(
        tuple(run * together + n for node in nodes for run in node)
        for nodes in dealt
        for n in range(together)
    )
    return Dealing(tree=tree, portions=portions)


def deal_in_rounds(
    tree: LeafTree, num_members: int, lengths: Sequence[int] = (), *, together: int = 1
) -> Dealing:
    """As `deal_in_runs`; members with fewer leaves are idle in the last rounds."""
    counts = _runs_each(tree, num_members, lengths, together)
    dealt: list[list[int]] = [[] for _ in counts]
    leaf = 0
    for number in range(max(counts)):
        for count, own in zip(counts, dealt, strict=True):
            if number < count:
                own.append(leaf)
                leaf += together
    portions = tuple(tuple(leaf + n for leaf in own) for own in dealt for n in range(together))
    return Dealing(tree=tree, portions=portions, in_rounds=True)


def _runs_each(
    tree: LeafTree, num_members: int, lengths: Sequence[int], together: int
) -> tuple[int, ...]:
    """How many runs of leaves each run of members computes."""
    for count, what in ((tree.num_leaves, "leaves"), (num_members, "ranks")):
        if count % together:
            raise LayoutError(
                f"{count} {what} cannot be dealt in runs of ep={together}; use a multiple of it"
            )
    firsts = lengths[::together]
    if any(length != firsts[n // together] for n, length in enumerate(lengths)):
        raise LayoutError(
            f"{tuple(lengths)} leaves each: {together} ranks that hold all experts between them "
            "have to have as many"
        )
    return leaves_each(tree.num_leaves // together, num_members // together, firsts)
