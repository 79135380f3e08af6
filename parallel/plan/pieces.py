"""How a flat buffer is cut among replicas: who owns which shard, and who adds up which piece of it.

Each of the dp replicas adds up one piece of the gradient. A shard is a run of pieces, those of the
ranks that own it, and gathering them along the replica group completes it: to everything at ZeRO 0
(one shard), to nothing more at plain ZeRO (a shard is one piece), to anything between under hybrid
sharding. Where a shard ends does not depend on how many replicas of it there are.
"""

from dataclasses import dataclass

_STREAMED_FROM = 2  # the ZeRO stage from which on no rank keeps a whole gradient
CHUNK = 64  # elements: every parameter starts, and every cut falls, on a multiple of this


def shard_size(stage: int, group: int, dp: int, cp: int = 1) -> int:
    """How many ranks hold one copy of the state together: those of `group` of the `dp` replicas, or
    of all if it is 0, with `cp` ranks each that have the same share of the model.
    """
    return (group or dp) * cp if stage else 1


def streams(stage: int, shards: int) -> bool:
    """Whether `shards` ranks that hold one copy together add up each leaf as soon as it is there.

    So replicas compute in rounds, all as many.
    """
    return stage >= _STREAMED_FROM and shards > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A buffer of `size` elements for `num_shards` shards that `num_replicas` ranks hold each."""

    size: int
    num_shards: int
    num_replicas: int

    @property
    def num_pieces(self) -> int:
        return self.num_shards * self.num_replicas

    @property
    def shard_size(self) -> int:
        """Elements that a rank owns: padded, unless there is one shard, which is the buffer."""
        return self.size if self.num_shards == 1 else _cut(self.size, self.num_shards)

    @property
    def piece_size(self) -> int:
        """Elements of a piece, padding included."""
        return _cut(self.shard_size, self.num_replicas)

    @property
    def padded_size(self) -> int:
        """Room for the buffer with all of its shards and pieces padded."""
        return max(self.shard_size * self.num_shards, self.piece_size * self.num_replicas)

    @property
    def in_order(self) -> bool:
        """Whether the pieces follow one another in the buffer as their ranks do on dp."""
        return 1 in (self.num_shards, self.num_replicas)

    def shard(self, number: int) -> range:
        """The elements of a shard, without padding. It may be empty."""
        start = number * self.shard_size
        return range(min(start, self.size), min(start + self.shard_size, self.size))

    def piece(self, position: int) -> range:
        """The elements of the padded buffer that the rank at this position on dp adds up."""
        replica, shard = divmod(position, self.num_shards)
        first, last = shard * self.shard_size, (shard + 1) * self.shard_size
        start = first + replica * self.piece_size
        return range(min(start, last), min(start + self.piece_size, last))


def _cut(size: int, num_parts: int) -> int:
    return -(-size // (CHUNK * num_parts)) * CHUNK
