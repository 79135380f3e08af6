"""The fragments that a rank owns of a flat buffer: pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from remesh.parallel.plan.buckets import FlatPlan
from remesh.parallel.plan.shares import Share
from remesh.parallel.state.fragments import Fragment, flat_boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A fragment and where it lies in the rank's shard: [start, start + fragment.num_elements)."""

    fragment: Fragment
    start: int


def owned_fragments(
    plan: FlatPlan,
    shapes: Mapping[str, tuple[int, ...]],
    shares: Mapping[str, Share] | None,
    owned: range,
    dtype: str,
) -> Iterator[Owned]:
    """What [owned.start, owned.stop) of a bucket's buffer is, in its order.

    `shapes` are those of the full tensors; without `shares` the rank's tensors are whole.
    """
    for name, place in plan.places.items():
        start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
        if start >= stop:
            continue
        offsets = shares[name].offsets if shares else (0,) * len(place.shape)
        for box in flat_boxes(
            shapes[name], offsets, place.shape, start - place.start, stop - place.start
        ):
            yield Owned(
                fragment=Fragment(
                    name=name,
                    global_shape=shapes[name],
                    offsets=box.offsets,
                    sizes=box.sizes,
                    dtype=dtype,
                ),
                start=place.start + box.flat_offset - owned.start,
            )
