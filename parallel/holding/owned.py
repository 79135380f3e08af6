"""The fragments that a rank owns of a flat buffer: pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from remesh.parallel.plan.buckets import FlatPlan, Place
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
        offsets = shares[name].offsets if shares else (0,) * len(place.shape)
        tensor = Fragment(
            name=name, global_shape=shapes[name], offsets=offsets, sizes=place.shape, dtype=dtype
        )
        yield from owned_boxes(place, tensor, owned)


def owned_boxes(place: Place, tensor: Fragment, owned: range) -> Iterator[Owned]:
    """What [owned.start, owned.stop) of a bucket's buffer is of one rank's `tensor`.

    Its rows beyond the full tensor are padding.
    """
    start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
    if start >= stop:
        return
    for box in flat_boxes(
        tensor.global_shape,
        tensor.offsets,
        tensor.sizes,
        start - place.start,
        stop - place.start,
    ):
        yield Owned(
            fragment=tensor.part(box.offsets, box.sizes),
            start=place.start + box.flat_offset - owned.start,
        )
