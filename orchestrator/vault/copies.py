"""Snapshots of a lease on their way to the vault that is its buddy.

One after the other, in the order in which they were sealed: what is safe has no gaps.
"""

from collections.abc import Iterator

from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.lease import Lease
from remesh.orchestrator.vault.vault_words import LeftAlone, SlotSafe, ToRank


def sent_on(number: int, lease: Lease, snapshot: tuple[int, int]) -> Iterator[sw.ShelfDo]:
    """A snapshot is sealed, in this slot of the lease and of this step."""
    if lease.copied:
        lease.queue.append(snapshot)
        if len(lease.queue) == 1:
            yield from _next(number, lease)


def taken(number: int, lease: Lease) -> Iterator[sw.ShelfDo]:
    """The buddy has the first of them."""
    if lease.queue:
        index, step = lease.queue.pop(0)
        yield from to_rank(number, lease, SlotSafe(slot=index, step=step))
        yield from _next(number, lease)


def refused(number: int, lease: Lease, error: str) -> Iterator[sw.ShelfDo]:
    """The buddy takes no more."""
    if lease.copied:
        lease.copied = False
        lease.queue.clear()
        if error:
            yield from to_rank(number, lease, LeftAlone(error=error))
        yield sw.EndCopies(lease=number)


def to_rank(number: int, lease: Lease, word: ToRank) -> Iterator[sw.TellRank]:
    """Nothing once nobody is there."""
    if lease.is_open:
        yield sw.TellRank(lease=number, word=word)


def _next(number: int, lease: Lease) -> Iterator[sw.ShelfDo]:
    while lease.queue:
        index, step = lease.queue[0]
        if lease.is_there(index, step):
            slot = lease.places[index].slot
            yield sw.SendCopy(lease=number, number=index, slot=slot, step=step)
            return
        lease.queue.pop(0)
    if lease.hung_up:
        yield sw.EndCopies(lease=number)
