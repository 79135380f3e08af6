"""Columns of a tensor stored apart, so that a rank that wants some of them does not read all rows.

A fragment lies in its file row after row. Only tensors that tensor parallelism cuts by columns gain
from panels; the others would pay, since the copy of a panel is slower than that of whole rows.
"""

from itertools import pairwise

from remesh.parallel.state.fragments import Fragment

NUM_PANELS = 8

_MIN_PANEL_BYTES = 4096


def panels(fragment: Fragment, num_panels: int = NUM_PANELS) -> list[Fragment]:
    """The box cut at each of `num_panels` equal parts of the full tensor's last dimension.

    It stays whole where that dimension cannot be cut so, or the panels would be small.
    """
    width = fragment.global_shape[-1] if len(fragment.global_shape) > 1 else 0
    step, rest = divmod(width, num_panels)
    if rest or not step or fragment.num_bytes * step < _MIN_PANEL_BYTES * fragment.sizes[-1]:
        return [fragment]
    first, last = fragment.offsets[-1], fragment.offsets[-1] + fragment.sizes[-1]
    inner = range((first // step + 1) * step, last, step)
    return [
        fragment.part((*fragment.offsets[:-1], start), (*fragment.sizes[:-1], stop - start))
        for start, stop in pairwise((first, *inner, last))
    ]
