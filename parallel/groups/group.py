"""The ranks of one collective as a value: formed, used, and ended at any moment.

A group is a thin wrapper around a raw ProcessGroup that is registered nowhere: a registered one is
kept alive by torch's private caches, its sockets stay open, survivors block and re-forming fails.

Every wait here can be ended from outside. Once a group stands, shutting its connections makes each
blocked operation raise, on this rank and then on its neighbours. Of operations that slept through
the end of their peers (the process was frozen) about one in four does not notice: it is left
behind a moment later, and its tensors must not be used again.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from threading import Thread
from typing import Protocol

import torch
from torch import distributed as dist

from remesh.parallel.doors.short_lines import MOST_NUMBERS, ShortLines
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.forming import Formed, Forming, reason
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.plan.errors import Cancelled, GroupError
from remesh.parallel.threads import heard_thread

_DROP_S = 0.2
_PATIENCE = timedelta(seconds=0.1)  # until an operation behind the fence is left


class Pending(Protocol):
    """An operation under way: what torch calls a Work."""

    def wait(self, timeout: timedelta) -> bool: ...

    def is_completed(self) -> bool: ...


Begin = Callable[[dist.ProcessGroup], Pending | Sequence[Pending]]


class Group:
    """The ranks of one generation that compute together. `bytes_sent` counts payload only."""

    def __init__(
        self, rendezvous: Rendezvous, fence: GenerationFence, parts: Formed | None, key: object
    ) -> None:
        self.rank = rendezvous.rank
        self.size = rendezvous.size
        self.generation = rendezvous.generation
        self.device = torch.device(rendezvous.device)
        self.fence = fence
        self.bytes_sent = 0
        self._parts = parts
        self._key = key
        self._end = parts.end if parts else None
        self._lines: ShortLines | None = None
        self._lines_key: object = None

    @staticmethod
    def form(
        rendezvous: Rendezvous, fence: GenerationFence, within: "Group | None" = None
    ) -> "Group":
        """The group, once every rank of it is there. A rank alone needs no sockets.

        `within` is the group of all ranks of its mesh, whose referee serves it if it is strict.

        Cost: 3-10 ms at 2-8 ranks on one host.
        Raises: Cancelled if the fence rises meanwhile or has risen before; GroupError if a rank
            does not come within the time, or goes.
        """
        fence.check(rendezvous.generation)
        if rendezvous.size == 1:
            return Group(rendezvous, fence, None, None)
        line = within._parts.line if within is not None and within._parts else None  # noqa: SLF001 - its own kind
        parts = Forming(rendezvous, line).wait(fence)
        try:
            key = fence.guard(rendezvous.generation, parts.end)
        except Cancelled:
            Dropping([parts]).wait()
            raise
        return Group(rendezvous, fence, parts, key)

    def check(self) -> None:
        """Raises: Cancelled if its generation is over."""
        self.fence.check(self.generation)

    def start(self, begin: Begin, sent_bytes: int) -> "PendingOperation":
        """Starts an operation. All ranks start the same ones in the same order.

        Raises: as `Operation.wait`.
        """
        self.check()
        if self._parts is None:
            raise GroupError(f"the group of generation {self.generation} is closed")
        try:
            pending = begin(self._parts.process_group)
        except RuntimeError as error:
            failure = reason(error)
        else:
            return PendingOperation(self, pending, sent_bytes)
        raise self._failed(failure)

    def run(self, begin: Begin, sent_bytes: int) -> None:
        """Starts an operation and waits for it. Raises: as `Operation.wait`."""
        self.start(begin, sent_bytes).wait()

    def connect(self, pids: Sequence[int], gather: Callable[[bytes], Sequence[bytes]]) -> None:
        """Have lines beside the group for few numbers, if its ranks, processes `pids` of one host,
        can have some. All of them call it.

        Raises: as `form`, and what `gather` raises.
        """
        lines = ShortLines.form(gather, self.rank, pids, self.check)
        if lines is None:
            return
        try:
            self._lines_key = self.fence.guard(self.generation, lines.end)
        except Cancelled:
            lines.close()
            raise
        self._lines = lines

    def can_tell(self, num_numbers: int) -> bool:
        return self._lines is not None and num_numbers <= MOST_NUMBERS

    def tell(self, numbers: Sequence[int], sent_bytes: int) -> list[list[int]]:
        """What each rank says, as many numbers, by lines. Raises: as `Operation.wait`."""
        self.check()
        if self._lines is None:
            raise GroupError(f"the group of generation {self.generation} has no lines")
        try:
            rows = self._lines.told(numbers)
        except OSError as error:
            failure = f"a line of the group has ended: {error}"
        else:
            self.bytes_sent += sent_bytes
            return rows
        raise self._failed(failure)

    def end(self) -> None:
        """Ends every operation of this group, here and at the neighbours. From any thread."""
        end, lines = self._end, self._lines
        if lines is not None:
            lines.end()
        if end is not None:
            end()

    def close(self) -> None:
        """Drops the group and its sockets. Repeatable; not while another thread runs operations."""
        close_all((self,)).wait()

    def _let_go(self) -> Formed | None:
        """What is left to drop of a group that has ended."""
        parts, self._parts = self._parts, None
        lines, self._lines = self._lines, None
        if lines is not None:
            self.fence.release(self._lines_key)
            lines.close()
        if parts is not None:
            self.fence.release(self._key)
            self._end = None  # its address may be another group's from now on
            if parts.hang_up is not None:
                parts.hang_up()
        return parts

    def _finish(self, pending: list[Pending], sent_bytes: int) -> None:
        try:
            for part in pending:
                self._wait(part)
        except RuntimeError as error:
            failure = reason(error)
        else:
            self.bytes_sent += sent_bytes
            return
        pending.clear()
        raise self._failed(failure)

    def _failed(self, failure: str) -> GroupError:
        """To be raised out of any handler: no traceback may keep an operation's tensors alive.

        Raises: Cancelled if the fence is the reason.
        """
        self.end()
        self.check()
        return GroupError(failure)

    def _wait(self, pending: Pending) -> None:
        """Raises: RuntimeError if it fails, or does not end within a moment of the group's end."""
        while True:
            over = self._parts is None or self.fence.is_up(self.generation)
            try:
                pending.wait(_PATIENCE)
            except RuntimeError:
                if pending.is_completed():  # it failed, or ended just after the wait
                    pending.wait(_PATIENCE)
                    return
                if over:
                    raise
            else:
                return


class PendingOperation:
    """A collective under way; its tensors belong to it until `wait` returns. Without a group it is
    one that had nothing to do. `finish` is what is left to do here once the messages are there.
    """

    __slots__ = ("_finish", "_group", "_pending", "_sent_bytes")

    def __init__(
        self,
        group: Group | None = None,
        pending: Pending | Sequence[Pending] = (),
        sent_bytes: int = 0,
    ) -> None:
        self._pending = list(pending) if isinstance(pending, Sequence) else [pending]
        self._group = group
        self._sent_bytes = sent_bytes
        self._finish: Callable[[], object] | None = None

    def then(self, finish: Callable[[], object]) -> "PendingOperation":
        """The same operation, which ends with `finish`."""
        self._finish = finish
        return self

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return all(pending.is_completed() for pending in self._pending)

    def wait(self) -> None:
        """Returns once it is done; at once if it was waited for before.

        Raises: Cancelled if the fence is up; GroupError if the operation fails, with all of the
            group's connections shut by then, which frees the neighbours. Do not use the
            operation's tensors again after either.
        """
        group, self._group = self._group, None
        pending, self._pending = self._pending, []
        finish, self._finish = self._finish, None
        if group is not None:
            group._finish(pending, self._sent_bytes)  # noqa: SLF001 - the two are one
        if finish is not None:
            finish()


def close_all(groups: Iterable[Group]) -> "Dropping":
    """As `Group.close`. Sockets first: a rank that waits in one group is freed before another is
    dropped, which goes on beside whoever does not wait for it.
    """
    groups = tuple(groups)
    for group in groups:
        group.end()
    return Dropping(filter(None, (group._let_go() for group in groups)))  # noqa: SLF001 - its own kind


class Dropping:
    """Groups that are given up, each in a thread: its destructor waits for operations that cannot
    end. They have one moment together, however many they are.
    """

    def __init__(self, all_parts: Iterable[Formed]) -> None:
        self._threads = [self._begun(parts) for parts in all_parts]
        self._until_s = time.monotonic() + _DROP_S

    def wait(self) -> None:
        """Until nothing is left of them, or their moment is over. Repeatable."""
        for thread in self._threads:
            thread.join(max(0.0, self._until_s - time.monotonic()))

    @staticmethod
    def _begun(parts: Formed) -> Thread:
        held = [parts.process_group, parts.end]
        del parts.process_group, parts.end
        thread = heard_thread(held.clear, name="drop")
        del held
        thread.start()
        return thread
