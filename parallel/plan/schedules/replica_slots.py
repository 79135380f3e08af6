"""The microbatches of one replica, in the order in which it adds them up: its slots.

A slot without a microbatch is an empty visit: this replica has nothing to compute there, but others
have, and take part in collectives in which nobody may be missing. Such slots come last.
"""

from dataclasses import dataclass

from remesh.parallel.plan.dealing import Dealing


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A microbatch by its number in the global batch, and its leaf, or None for an empty visit."""

    microbatch: int | None
    leaf: int | None
    ends_leaf: bool


def slots_of(dealing: Dealing, member: int, microbatches_per_leaf: int) -> tuple[Slot, ...]:
    """Those of a member: of its leaves, and of those in which it keeps the others company."""
    size = microbatches_per_leaf
    return (
        *(
            Slot(microbatch=leaf * size + n, leaf=leaf, ends_leaf=n == size - 1)
            for leaf in dealing.portions[member]
            for n in range(size)
        ),
        *(
            Slot(microbatch=None, leaf=None, ends_leaf=n == size - 1)
            for _ in range(dealing.num_idle(member))
            for n in range(size)
        ),
    )


def slots_alone(num_microbatches: int) -> tuple[Slot, ...]:
    """Those of a replica that has the global batch to itself, each microbatch a leaf."""
    return tuple(Slot(microbatch=n, leaf=n, ends_leaf=True) for n in range(num_microbatches))
