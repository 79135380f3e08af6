"""What makes a slot a snapshot: its hashes, taken when it is sealed and compared when it comes."""

from dataclasses import dataclass, replace
from functools import lru_cache

from remesh.actors.vault.slot_memory import SlotMemory
from remesh.orchestrator.vault.vault_words import SlotState
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.headers import ShardHeader, header_of, sealed, shard_digest
from remesh.parallel.state.root_manifest import CheckpointRef

_PIECE_BYTES = 4 << 20
_LENGTH_BYTES = 8  # in front of a header
_LAYOUTS = 8  # as many ranks as a node usually has


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """`digest` proves the header, which proves the rest; before the tensors are `start_bytes`."""

    digest: str
    start_bytes: int


def seal(slot: SlotMemory, ref: CheckpointRef) -> Proof:
    """Hash what was copied into a slot: from now on it is whole.

    Raises: CheckpointError if it is no snapshot.
    """
    length = _LENGTH_BYTES + int.from_bytes(slot.shard[:_LENGTH_BYTES], "little")
    try:
        header = _laid_out(bytes(slot.shard[:length]), slot.size_bytes)
        start = sealed(replace(header, ref=ref), slot.shard)
    except AssertionError as error:
        raise CheckpointError(f"its header has another length than it says: {error}") from None
    slot.shard[: len(start)] = start
    return _sealed(slot, ref.step, Proof(digest=shard_digest(start), start_bytes=len(start)))


def admit(slot: SlotMemory, step: int, digest: str) -> Proof:
    """Prove a sealed snapshot that was received or copied into a slot.

    Raises: CheckpointError if a bit of it is another.
    """
    header = header_of(slot.shard, size_bytes=slot.size_bytes)
    if shard_digest(slot.shard) != digest:
        raise CheckpointError("the hash of its header is not the one that was told")
    for part in header.parts:
        if not part.has_chunks(0, slot.shard[part.start : part.end]):
            raise CheckpointError(f"the hash of {part.fragment} is not in its header")
    start_bytes = min(part.start for part in header.parts)
    return _sealed(slot, step, Proof(digest=digest, start_bytes=start_bytes))


def copy_over(source: SlotMemory, target: SlotMemory) -> None:
    """In pieces, so that other threads go on meanwhile."""
    for start in range(0, source.size_bytes, _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, source.size_bytes)
        target.shard[start:end] = source.shard[start:end]


@lru_cache(maxsize=_LAYOUTS)
def _laid_out(start: bytes, size_bytes: int) -> ShardHeader:
    """What a rank says before it is sealed, which is the same for each of its snapshots: to take it
    apart costs more than to hash a few MB. Raises: CheckpointError.
    """
    return header_of(start, size_bytes=size_bytes)


def _sealed(slot: SlotMemory, step: int, proof: Proof) -> Proof:
    slot.step, slot.state = step, SlotState.SEALED
    return proof
