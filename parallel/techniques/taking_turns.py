"""Two passes of a rank by turns: while one waits for its message, the other one computes.

Which pass has its turn when follows from where they wait, and from no clock: ranks that share
experts change over at the same places, so that their collectives have one order, and each pass
computes by the kernels that it would use alone. Only one of them computes at a time.

A pass stands in the middle of a graph while it waits, in backward below autograd's own code. So one
of the two, the guest, has a thread: at any moment either that or the rank's own goes on. What lost:
graphs that are cut at every message, which forward, backward, halves and what is computed again
would each have to be put together from, in a model that knows of no ranks.

What the guest makes should not outlast it: memory that one thread takes and another one gives back
is hardly ever used again. A rank's own pass is the forward, whose activations stay.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Semaphore
from typing import Literal

import torch

from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.plan.errors import Cancelled
from remesh.parallel.plan.schedules.operations import Operation
from remesh.parallel.threads import heard_thread

Compute = Callable[[], object]
BothRun = Callable[[Compute | None, Compute | None], None]

_OWN, _GUEST = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWord:
    """Where the pass of an operation is: it computes from now on, or a message starts, or it has to
    wait for that.
    """

    what: Literal["computes", "starts", "waits"]
    of: Operation | None


class TakingTurns:
    """Who waits for a message does so here. `trace`, if there is one, is told every moment."""

    def __init__(self) -> None:
        self.trace: Callable[[TurnWord], object] | None = None
        self.operation: Operation | None = None
        self._pair: _Pair | None = None

    def tell(self, what: Literal["computes", "starts", "waits"]) -> None:
        """Of the pass whose turn it is."""
        if self.trace is not None:
            self.trace(TurnWord(what=what, of=self.operation))

    def wait_for(self, message: PendingOperation) -> None:
        """Once the other pass, if there is one, has to wait as well, or is through.

        Raises: Cancelled, GroupError; what the other pass raises.
        """
        own = self.operation
        self.tell("starts")
        if self._pair is not None:
            self._pair.hand_over()
        self.operation = own
        self.tell("waits")
        message.wait()
        self.tell("computes")

    @contextmanager
    def of_two(self, own: Operation, guest: Operation) -> Iterator[BothRun]:
        """Gives what runs a part of each, if there is one, to its end: the guest begins.

        It raises what either of them raises.
        """
        pair = self._pair = _Pair()

        def run(of_own: Compute | None, of_guest: Compute | None) -> None:
            pair.run(lambda: self._as(own, of_own), lambda: self._as(guest, of_guest))

        try:
            yield run
        finally:
            self._pair = None
            pair.end()

    def _as(self, operation: Operation, compute: Compute | None) -> None:
        self.operation = operation
        if compute is not None:
            self.tell("computes")
            compute()


class _Pair:
    """The turns of a rank's own pass and its guest, which has a thread, and now `_task` to do."""

    def __init__(self) -> None:
        self._turns = Semaphore(0), Semaphore(0)
        self._whose = _OWN
        self._task: Compute | None = None
        self._own_is_through = False
        self._is_over = False
        self._error: BaseException | None = None
        self._num_threads = torch.get_num_threads()
        self._thread = heard_thread(self._serve, name="second pass")
        self._thread.start()

    def run(self, of_own: Compute, of_guest: Compute) -> None:
        self._task, self._own_is_through = of_guest, False
        self._let_guest()
        of_own()
        self._own_is_through = True
        self._let_guest()

    def hand_over(self) -> None:
        """Raises: what the guest raises; Cancelled there, if the own pass has failed."""
        if self._whose == _OWN:
            self._let_guest()
            return
        if not self._own_is_through:
            self._change()
        if self._is_over:
            raise Cancelled("the pass beside this one has failed")

    def end(self) -> None:
        """Ends the guest wherever it stands, and its thread."""
        self._is_over = True
        if self._task is not None:
            self._change()
        self._turns[_GUEST].release()
        self._thread.join()
        self._error = None

    def _let_guest(self) -> None:
        """Until it waits or is through. What it raises keeps no hold on what it may still write."""
        if self._task is not None:
            self._change()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def _change(self) -> None:
        """Returns at the next turn of whoever calls it."""
        before, self._whose = self._whose, 1 - self._whose
        self._turns[self._whose].release()
        self._turns[before].acquire()

    def _serve(self) -> None:
        torch.set_num_threads(self._num_threads)  # a number that each thread has of its own
        while True:
            self._turns[_GUEST].acquire()
            if self._task is None:
                return
            try:
                if not self._is_over:
                    self._task()
            except BaseException as error:  # noqa: BLE001 - the own pass raises it
                self._error = error
            self._task, self._whose = None, _OWN
            self._turns[_OWN].release()
