"""A rank's shard in memory that is laid out once: a save then costs one copy of the tensors.

All that depends on what a rank holds and not on the values (the order of the file, the header, the
places of the tensors) is worked out at the first save and kept.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader, in_file_order, lay_out
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.shards import put_shard
from remesh.parallel.state.storage import Storage

_NO_REF = CheckpointRef(step=0, generation=0)


class ShardBuffer:
    """Copies and writes the same `part` of the state again and again; its tensors are views.

    `memory` is that of a buffer which nobody needs any more: it is used again where it has the
    right size, since memory that has been used before is several times as fast.
    """

    def __init__(
        self, part: Sequence[tuple[Fragment, Tensor]], memory: bytearray | None = None
    ) -> None:
        tensors = {fragment: tensor.detach() for fragment, tensor in part}
        self._fragments = in_file_order(tensors)
        self._tensors = [tensors[fragment] for fragment in self._fragments]
        self._places: list[Tensor] = []
        self.memory = bytearray() if memory is None else memory
        self._header = ShardHeader(ref=_NO_REF, parts=(), size_bytes=-1)

    def copy(self, ref: CheckpointRef) -> None:
        """Takes the values that the tensors have now.

        Cost: each byte is copied once; milliseconds more when `ref` has more digits than before.
        """
        if self._header.size_bytes < 0 or _width(ref) != _width(self._header.ref):
            self._lay_out(ref)
        self._header = replace(self._header, ref=ref)
        if self._places:
            torch._foreach_copy_(self._places, self._tensors)

    def write(self, storage: Storage, path: str) -> ShardFile:
        """Puts what was copied. Raises as `write_shard`."""
        return put_shard(storage, path, self.memory, self._header)

    def _lay_out(self, ref: CheckpointRef) -> None:
        """The header's length depends on the digits of `ref`, and so do all places."""
        _, self._header = lay_out(ref, self._fragments)
        if len(self.memory) != self._header.size_bytes:
            self.memory = bytearray(self._header.size_bytes)
        file_B = torch.frombuffer(self.memory, dtype=torch.uint8)
        self._places = [
            file_B[part.start : part.end].view(tensor.dtype).view(tensor.shape)
            for part, tensor in zip(self._header.parts, self._tensors, strict=True)
        ]


def _width(ref: CheckpointRef) -> tuple[int, ...]:
    return tuple(len(str(number)) for number in (ref.step, ref.generation, ref.start))
