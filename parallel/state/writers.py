"""Who writes what of the state that several ranks hold alike: every byte once, loads balanced.

Those who hold the same fragments are a team, and each team shares out what it holds among its
members. A rank needs to know only its own fragments and who else holds them, never the mesh. The
alternative, whole tensors to the least loaded rank of all, cannot do with an embedding that is
larger than a writer's share, and every rank has to know all the fragments of all the others.

A team's fragments lie one behind the other, cut into as many spans of equal bytes as it has
members. A cut goes to a fragment's edge or between two rows where one is near enough, so that
there are few pieces, each member's follow one another, and most tensors stay whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from remesh.parallel.state.fragments import Fragment, Numbers, flat_boxes, item_bytes
from remesh.parallel.state.reshard import HeldFragment, Holder

# How far a cut may lie from its place, as a part of a writer's load. Both ends of a span may.
_SLACK = 0.0125


def writes(held: Iterable[HeldFragment], writer: Holder) -> list[Fragment]:
    """The boxes that `writer` writes of what it holds: loads within a team differ by at most 5 %.

    The holders of a fragment have to be named in the same order everywhere. What only others hold
    is passed over.
    """
    teams: dict[tuple[Holder, ...], list[Fragment]] = defaultdict(list)
    for one in held:
        if writer in one.holders and one.fragment.num_elements:
            teams[one.holders].append(one.fragment)
    return [
        box
        for team, fragments in teams.items()
        for box in _span(sorted(fragments, key=_place), team.index(writer), len(team))
    ]


def _span(fragments: Sequence[Fragment], index: int, num_writers: int) -> list[Fragment]:
    total = sum(fragment.num_bytes for fragment in fragments)
    slack = _SLACK * total / num_writers
    start, stop = total * index // num_writers, total * (index + 1) // num_writers
    boxes: list[Fragment] = []
    at = 0
    for fragment in fragments:
        first = _cut(fragment, start - at, slack)
        last = _cut(fragment, stop - at, slack)
        cut = flat_boxes(fragment.global_shape, fragment.offsets, fragment.sizes, first, last)
        boxes += (fragment.part(box.offsets, box.sizes) for box in cut)
        at += fragment.num_bytes
    return boxes


def _place(fragment: Fragment) -> tuple[str, Numbers]:
    return fragment.name, fragment.offsets


def _cut(fragment: Fragment, at_bytes: int, slack_bytes: float) -> int:
    """The element before which to cut, at most `slack_bytes` from the place if that is inside."""
    item = item_bytes(fragment.dtype)
    unit = fragment.num_elements
    place = min(max(at_bytes / item, 0), unit)
    for size in (*fragment.sizes, 1):
        nearest = round(place / unit) * unit
        if abs(nearest - place) * item <= slack_bytes:
            break
        unit //= size
    return nearest
