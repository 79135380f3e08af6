"""What torch asks of a group, with a device's manners, around a group that has none.

An operation is told to the referee when it is started; the backend gets it once the referee has
said that all who take part have the same one. It has no effect that can be seen before it is waited
for, and an operation that nobody waits for is an error, which the next one raises.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch import distributed as dist

from remesh.parallel.groups.strict.described import Described
from remesh.parallel.groups.strict.in_flight import Lent, touched, unfit
from remesh.parallel.groups.strict.referee_line import RefereeLine

Launch = Callable[[], Any]  # begins the backend's operation and returns it


class InFlight:
    """An operation from its start to its end, for whoever waits and for whoever launches it."""

    def __init__(self, number: int, text: str, lent: Sequence[Lent], launch: Launch) -> None:
        self.number = number
        self.text = text
        self.since_s = time.monotonic()
        self._lent = lent
        self._launch = launch
        self._under_way = threading.Event()
        self._work: Any = None
        self._failure = ""
        self._has_landed = False

    @property
    def is_under_way(self) -> bool:
        """Whether the backend has it, or never will."""
        return self._under_way.is_set()

    @property
    def is_over(self) -> bool:
        return bool(self._failure) or (self._work is not None and self._work.is_completed())

    def launch(self) -> None:
        try:
            self._work = self._launch()
        except RuntimeError as error:
            self._failure = str(error)
        self._under_way.set()

    def fail(self, text: str) -> None:
        """Unless the backend has it."""
        if not self.is_under_way:
            self._failure = text
            self._under_way.set()

    def wait(self, timeout: timedelta) -> None:
        """Raises: RuntimeError if it fails, or is not done in time; it may be waited for again."""
        until_s = time.monotonic() + timeout.total_seconds()
        if not self._under_way.wait(timeout.total_seconds()):
            raise RuntimeError("timed out")
        if self._failure:
            raise RuntimeError(self._failure)
        if not self._has_landed:
            self._work.wait(timedelta(seconds=max(0.001, until_s - time.monotonic())))
            self._land()

    def _land(self) -> None:
        """Shows what it has done. Raises: RuntimeError if its tensors were used meanwhile."""
        self._has_landed = True
        what = touched(self._lent)
        if what:
            self._failure = f"{self.text}: {what}"
            raise RuntimeError(self._failure)
        for lent in self._lent:
            lent.give_back()


class _GlooMessage:
    """A send or a receive of gloo, for which one can wait only once: else its connections close."""

    def __init__(self, work: dist.Work, limit_s: float) -> None:
        self._work = work
        self._limit = timedelta(seconds=limit_s)
        self._is_done = False

    def wait(self, _: timedelta) -> None:
        if not self._is_done:
            self._work.wait(self._limit)
            self._is_done = True

    def is_completed(self) -> bool:
        return self._is_done or self._work.is_completed()


class StrictWork:
    """What torch calls a Work: the one hold that its user has on an operation."""

    def __init__(self, flight: InFlight, processes: "StrictProcesses") -> None:
        self._flight = flight
        self._processes = processes
        self._was_waited_for = False

    def wait(self, timeout: timedelta) -> bool:
        """Raises: RuntimeError if it fails, or is not done in time; it may be waited for again."""
        self._was_waited_for = True
        self._processes.wait_for(self._flight, timeout)
        return True

    def is_completed(self) -> bool:
        return self._flight.is_over

    def __del__(self) -> None:
        if not self._was_waited_for:
            self._processes.skipped(self._flight)


class StrictProcesses:
    """A group's operations under the eyes of the referee."""

    def __init__(
        self, inner: dist.ProcessGroup, line: RefereeLine, name: str, *, op_timeout_s: float
    ) -> None:
        self._inner = inner
        self._line = line
        self._name = name
        self._place, self._num_places = inner.rank(), inner.size()
        self._op_timeout_s = op_timeout_s
        self._lock = threading.Lock()
        self._told: deque[InFlight] = deque()
        self._num_started = 0
        self._failure = ""
        self._is_ended = False

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> StrictWork:
        [tensor] = tensors
        kind = f"all_reduce {str(options.reduceOp.op).rpartition('.')[2].lower()}"
        each = [tensor.numel()] * self._num_places
        self._check([tensor])
        lent = Lent.to_write(tensor)
        described = self._described(kind, tensor, each, each)
        return self._start(described, [lent], lambda: self._inner.allreduce([lent.copy], options))

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> StrictWork:
        [tensor] = tensors
        root, size = options.rootRank, tensor.numel()
        nothing, each = [0] * self._num_places, [size] * self._num_places
        from_root = [size if place == root else 0 for place in range(self._num_places)]
        is_root = root == self._place
        self._check([tensor])
        lent = Lent.to_read(tensor) if is_root else Lent.to_write(tensor)
        sends, receives = (each, nothing) if is_root else (nothing, from_root)
        described = self._described("broadcast", tensor, sends, receives)
        return self._start(described, [lent], lambda: self._inner.broadcast([lent.copy], options))

    def alltoall_base(
        self,
        out: Tensor,
        tensor: Tensor,
        out_sizes: Sequence[int],
        sizes: Sequence[int],
    ) -> StrictWork:
        self._check([out, tensor])
        read, written = Lent.to_read(tensor), Lent.to_write(out)
        described = self._described("all_to_all", tensor, sizes, out_sizes)
        return self._start(
            described,
            [read, written],
            lambda: self._inner.alltoall_base(
                written.copy, read.copy, list(out_sizes), list(sizes)
            ),
        )

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int) -> StrictWork:
        [tensor] = tensors
        self._check([tensor], tag)
        lent = Lent.to_read(tensor)
        described = self._to_one("send", tensor, peer)
        return self._start(
            described, [lent], lambda: self._message(self._inner.send([lent.copy], peer, tag))
        )

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int) -> StrictWork:
        [tensor] = tensors
        self._check([tensor], tag)
        lent = Lent.to_write(tensor)
        described = self._to_one("receive", tensor, peer)
        return self._start(
            described, [lent], lambda: self._message(self._inner.recv([lent.copy], peer, tag))
        )

    def wait_for(self, flight: InFlight, timeout: timedelta) -> None:
        """Raises: RuntimeError if it fails, or is not done in time."""
        if not flight.is_under_way:
            self._line.says_wait(self._name, flight.number)
        if time.monotonic() > flight.since_s + self._op_timeout_s:
            limit_s = self._op_timeout_s
            flight.fail(f"{flight.text} has waited {limit_s:g} s for the other ranks")
        try:
            flight.wait(timeout)
        except RuntimeError:
            verdict = self._line.verdict(asks=not self._is_ended) if flight.is_over else ""
            if verdict:
                raise RuntimeError(verdict) from None
            raise
        self._complain()

    def go(self) -> None:
        """The next operation may go on."""
        with self._lock:
            flight = self._told.popleft() if self._told else None
        if flight is not None:
            flight.launch()

    def fail(self, text: str) -> None:
        """All that the backend does not have yet, and whatever is started from now on."""
        with self._lock:
            self._failure = self._failure or text
            told, self._told = list(self._told), deque()
        for flight in told:
            flight.fail(text)

    def end(self) -> None:
        """From any thread; repeatable. Nobody has to wait for the referee from then on."""
        self._is_ended = True
        self.fail(f"the group {self._name} was ended")
        self._line.says_leave(self._name)

    def skipped(self, flight: InFlight) -> None:
        if not self._failure:
            self._line.notes(f"nobody has waited for {flight.text}")

    def _complain(self) -> None:
        """Raises: RuntimeError if somebody has not waited for an operation."""
        text = self._line.complaint()
        if text:
            raise RuntimeError(text)

    def _message(self, work: dist.Work) -> _GlooMessage:
        return _GlooMessage(work, self._op_timeout_s)

    def _check(self, tensors: Sequence[Tensor], tag: int = 0) -> None:
        """Raises: RuntimeError if a device's backend could not do it."""
        self._complain()
        what = unfit(tensors) or (f"there are no tags, and this one has {tag}" if tag else "")
        if what:
            raise RuntimeError(f"{what}: an operation of the group {self._name} that NCCL refuses")

    def _described(
        self, kind: str, tensor: Tensor, sends: Sequence[int], receives: Sequence[int]
    ) -> Described:
        peers = tuple(place for place in range(self._num_places) if place != self._place)
        return Described(
            kind=kind,
            dtype=str(tensor.dtype).removeprefix("torch."),
            peers=peers,
            sends=self._others(sends),
            receives=self._others(receives),
        )

    def _to_one(self, kind: str, tensor: Tensor, peer: int) -> Described:
        size = tuple(tensor.numel() if place == peer else 0 for place in range(self._num_places))
        nothing = (0,) * self._num_places
        is_sent = kind == "send"
        return Described(
            kind=kind,
            dtype=str(tensor.dtype).removeprefix("torch."),
            peers=(peer,),
            sends=size if is_sent else nothing,
            receives=nothing if is_sent else size,
        )

    def _others(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(0 if place == self._place else size for place, size in enumerate(sizes))

    def _start(self, described: Described, lent: Sequence[Lent], launch: Launch) -> StrictWork:
        with self._lock:
            self._num_started += 1
            what = described.text(range(self._num_places))
            text = f"operation {self._num_started} of the group {self._name}, {what}"
            flight = InFlight(self._num_started, text, lent, launch)
            if self._failure:
                flight.fail(self._failure)
            else:
                self._told.append(flight)
                self._line.says_start(self._name, described)
        return StrictWork(flight, self)
