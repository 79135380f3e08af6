"""The process that an agent forks its ranks and its vault from: all is imported, nothing is begun.

The agent starts it as warm_start.py says, with two descriptors: a socket on which it is asked, and
a file that holds the run's RunSpec; one that is begun early gets them from the agent that takes it
on. It has one thread, and looks before each fork: a thread that a library started would not be in
the child, but the locks that it held would. It makes no call to a device, computes nothing, and
knows nothing of Ray. What a child's own business is, its device, log, threads and stamps, begins in
the child. With `alone` as a third argument it forks nobody and is itself what it is asked for.

It reaps its children and tells how they ended. When the agent is gone it kills them, which reaches
one that is stopped too, clears up shared memory, and ends.

Alternatives that lost: forking from the agent itself, which has Ray's threads; starting Python for
each rank, which takes 1.6 s instead of 0.05 s.
"""

import gc
import os
import pickle
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from remesh.actors.agent.fork_words import (
    Crowded,
    Ended,
    Forked,
    ForkSeat,
    TakeCare,
    Warm,
    code_of,
    heard_word,
    say,
)
from remesh.actors.cluster.warm_start import WORD, be_nice_enough, taken_on
from remesh.actors.node.leftovers import sweep
from remesh.actors.node.seats import AnySeat, RankSeat
from remesh.actors.orders import RunSpec
from remesh.actors.vault.vault_process import be_vault
from remesh.actors.worker.rank_process import be_rank

_TASKS = Path("/proc/self/task")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # what is here already is never looked at again, and so stays shared
    if sys.argv[1] == WORD:
        line, number = taken_on(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
    else:
        line, number = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    with os.fdopen(number, "rb") as file:
        spec: RunSpec = pickle.load(file)  # noqa: S301 - of the agent
    gc.enable()
    be_nice_enough(os.environ)  # loading was as urgent as the agent is, training is not
    if sys.argv[3:] == ["alone"]:
        word, (end,) = heard_word(line)
        line.close()
        be_seated(spec, word.seat, socket.socket(fileno=end))
    else:
        Nursery(line, spec).run()


class Nursery:
    """The children by the descriptors that stand for them; with 0 for those of one before."""

    def __init__(self, line: socket.socket, spec: RunSpec) -> None:
        self._line = line
        self._spec = spec
        self._children: dict[int, int] = {}

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        try:
            say(self._line, Warm())
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor != self._line.fileno():
                        poll.unregister(descriptor)
                        self._reap(descriptor)
                    elif not self._obey(poll):
                        return
        except OSError:  # the agent is gone
            return
        finally:
            self._end()

    def _obey(self, poll: select.poll) -> bool:
        """Whether the agent is still there."""
        word, descriptors = heard_word(self._line)
        match word:
            case TakeCare():
                self._children[descriptors[0]] = 0
                poll.register(descriptors[0], select.POLLIN)
            case ForkSeat(number=number, seat=seat):
                self._fork(number, seat, descriptors[0], poll)
            case _:
                return False
        return True

    def _fork(self, number: int, seat: AnySeat, end: int, poll: select.poll) -> None:
        if threads := others():
            os.close(end)
            say(self._line, Crowded(threads=threads))
            return
        pid = os.fork()
        if pid == 0:
            self._be(seat, end)
        os.close(end)
        # It cannot be reaped before this: nobody else reaps it.
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = pid
        poll.register(descriptor, select.POLLIN)
        say(self._line, Forked(number=number, pid=pid), descriptor)

    def _be(self, seat: AnySeat, end: int) -> NoReturn:
        """In the child: what is the parent's is closed, or the end of it would not be seen."""
        try:
            self._line.close()
            for descriptor in self._children:
                os.close(descriptor)
            be_seated(self._spec, seat, socket.socket(fileno=end))
        finally:
            os._exit(1)

    def _reap(self, descriptor: int) -> None:
        pid = self._children.pop(descriptor)
        try:
            found = os.waitid(os.P_PIDFD, descriptor, os.WEXITED) if pid else None
        finally:
            os.close(descriptor)
        if found:
            say(self._line, Ended(pid=pid, code=code_of(found)))

    def _end(self) -> None:
        for descriptor in self._children:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor, pid in self._children.items():
            if pid:
                os.waitid(os.P_PIDFD, descriptor, os.WEXITED)
        sweep(self._spec.run)


def be_seated(spec: RunSpec, seat: AnySeat, end: socket.socket) -> None:
    """Be the rank or the vault of this seat, to the end of the process."""
    if isinstance(seat, RankSeat):
        be_rank(spec, seat, end)
    else:
        be_vault(spec, seat, end)


def others() -> tuple[str, ...]:
    """The names of the threads of this process beside its first one."""
    me = str(os.getpid())
    found = []
    for task in _TASKS.iterdir():
        with suppress(OSError):  # it has just ended
            if task.name != me:
                found.append((task / "comm").read_text().strip())
    return tuple(found)
