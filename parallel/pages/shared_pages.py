"""What the ranks of a group read of each other's memory, if all of them can.

They try it out while the group forms: whether each can map what the others show. Where one cannot
(another host, another container, another user, another system) all of them go on with messages. A
process's id means nothing elsewhere, so nobody looks at one of another host or container: the file
of a stranger may be one that waits to be opened. A mapping is for reading only: a process that was
stopped and wakes up long after its generation can spoil nobody's numbers, and what it reads is its
own generation's.
"""

import hashlib
import mmap
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from remesh.parallel.pages.own_pages import OwnPages, PagePlace
from remesh.parallel.plan.errors import GroupError

Gather = Callable[[bytes], Sequence[bytes]]

_CARD = struct.Struct("<8s4q")
_NOBODY = -1
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")


class SharedPages:
    """The memory of the ranks of one group, by their process ids."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids
        self._mapped: dict[tuple[int, int], tuple[int, mmap.mmap]] = {}

    @staticmethod
    def form(gather: Gather) -> "SharedPages | None":
        """None if any rank cannot read another one's. All ranks of the group call it.

        `gather` gives what all ranks say, messages of one size, in the order of the ranks.
        Raises: what `gather` raises.
        """
        own = OwnPages()
        mine = _card(own)
        cards = [_CARD.unpack(card) for card in gather(_CARD.pack(*mine))]
        pages = SharedPages([pid for _, pid, *_ in cards])
        can = all(home == mine[0] for home, *_ in cards)
        can = can and all(pages._can_read(rank, card) for rank, (_, _, *card) in enumerate(cards))
        answers = gather(bytes([can]))
        pages.close()
        return pages if all(answer == b"\1" for answer in answers) else None

    def of(self, ranks: slice) -> "SharedPages":
        """Of some of the ranks, as a group of their own."""
        return SharedPages(self.pids[ranks])

    def view(self, rank: int, place: PagePlace, size: int, dtype: torch.dtype) -> Tensor:
        """Elements of another rank's buffer, to be read. Raises: GroupError if there are none."""
        key, memory = self._mapped.get((rank, place.descriptor), (None, None))
        if memory is None or key != place.key:
            memory = self._map(rank, place)
            self._mapped[rank, place.descriptor] = place.key, memory
        return torch.frombuffer(memory, dtype=dtype, count=size, offset=place.offset)

    def close(self) -> None:
        """Gives up all mappings. Repeatable."""
        self._mapped.clear()

    def _can_read(self, rank: int, card: Sequence[int]) -> bool:
        descriptor, key, offset = card
        try:
            with warnings.catch_warnings():  # torch says once that nobody may write there
                warnings.simplefilter("ignore", UserWarning)
                place = PagePlace(descriptor=descriptor, key=key, offset=offset)
                self.view(rank, place, 1, torch.uint8)
        except GroupError:
            return False
        return True

    def _map(self, rank: int, place: PagePlace) -> mmap.mmap:
        path = f"/proc/{self.pids[rank]}/fd/{place.descriptor}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise GroupError(f"the memory of rank {rank} cannot be read: {error}") from None
        if int.from_bytes(memory[:8], "little") != place.key:
            raise GroupError(f"{path} is not the memory that rank {rank} has told of")
        return memory


def _card(own: OwnPages) -> tuple[bytes, int, int, int, int]:
    """Where processes have the ids that this one knows, its own, and a place in its memory."""
    try:
        home = hashlib.sha256(f"{_BOOT.read_text()}{_PIDS.readlink()}".encode()).digest()[:8]
        place = own.place(own.take(1, torch.uint8))
    except (OSError, AttributeError):  # the system is out of it, or has no such files
        return b"", _NOBODY, 0, 0, 0
    return home, os.getpid(), place.descriptor, place.key, place.offset
