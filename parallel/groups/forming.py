"""Forms a process group in a thread that can be left behind.

While a group forms there may be no connection to shut yet (the peer that ought to connect is dead).
So the forming runs in a thread of its own, which is left behind when the fence rises or the time is
up: it touches no tensor, and what it has built is dropped.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from torch import distributed as dist

from remesh.parallel.doors.addresses import resolved
from remesh.parallel.groups.absent import Attendance
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.gloo import build_gloo, listening
from remesh.parallel.groups.nccl import build_nccl
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.groups.store import StoreClient
from remesh.parallel.groups.strict.referee_line import RefereeLine
from remesh.parallel.groups.strict.referee_service import RefereeService
from remesh.parallel.groups.strict.strict_processes import StrictProcesses
from remesh.parallel.plan.errors import GroupError
from remesh.parallel.threads import heard_thread

_POLL_S = 0.005


@dataclass(slots=True, kw_only=True)
class Formed:
    """A raw process group, and what ends all of its operations, from any thread.

    A strict one has the `line` to its mesh's referee, and hangs up if it has opened it.
    """

    process_group: dist.ProcessGroup
    end: Callable[[], None]
    line: RefereeLine | None = None
    hang_up: Callable[[], None] | None = None


class Forming:
    """One attempt to form a group, in a thread that can be left behind.

    `line` is that of the group of all ranks, if there is a referee by then.
    """

    def __init__(self, rendezvous: Rendezvous, line: RefereeLine | None = None) -> None:
        self._rendezvous = rendezvous
        self._line = line
        self._done = threading.Event()
        self._left = threading.Event()
        self._client: StoreClient | None = None
        self._formed: Formed | None = None
        self._failure = ""
        self._attendance = Attendance(rank=rendezvous.rank, size=rendezvous.size)

    def wait(self, fence: GenerationFence) -> Formed:
        deadline_s = time.monotonic() + self._rendezvous.form_timeout_s
        heard_thread(self._run, name="form").start()
        try:
            while not self._done.wait(_POLL_S):
                fence.check(self._rendezvous.generation)
                if time.monotonic() > deadline_s:
                    limit_s = self._rendezvous.form_timeout_s
                    raise self._error(f"{self._who()} waited {limit_s:g} s")
        finally:
            self._left.set()
            if self._client is not None:
                self._client.close()
        if self._formed is None:
            raise self._error(f"{self._who()}: {self._failure}")
        return self._formed

    def _error(self, text: str) -> GroupError:
        return GroupError(text, self._attendance.waited_for())

    def _who(self) -> str:
        r = self._rendezvous
        return f"rank {r.rank} of {r.size} could not form generation {r.generation}"

    def _build(self, client: StoreClient) -> Formed:
        r = self._rendezvous
        if r.device != "cpu":
            process_group, end = build_nccl(r, client)
            return Formed(process_group=process_group, end=end)
        process_group, end = build_gloo(r, client, self._attendance.there)
        if not r.strict:
            return Formed(process_group=process_group, end=end)
        line = self._line or self._open_line(client)
        strict = StrictProcesses(process_group, line, r.name, op_timeout_s=r.op_timeout_s)
        line.joins(r.name, r.rank, strict)
        hang_up = None if line is self._line else line.close
        return Formed(
            process_group=cast("dist.ProcessGroup", strict),  # what of one is used here
            end=partial(_end_both, strict, end),
            line=line,
            hang_up=hang_up,
        )

    def _open_line(self, client: StoreClient) -> RefereeLine:
        """To the referee of this group and those within it, which its first rank has."""
        r = self._rendezvous
        _, node_ip = resolved(r.node_ip)
        if r.rank == 0:
            with listening:
                service = RefereeService.open(
                    node_ip, secret=r.secret, num_ranks=r.size, limit_s=r.form_timeout_s
                )
            client.set("referee", f"{node_ip} {service.port}".encode())
        host, port = client.get("referee").decode().split()
        return RefereeLine.connect(
            (host, int(port)), secret=r.secret, rank=r.rank, timeout_s=r.form_timeout_s
        )

    def _run(self) -> None:
        r = self._rendezvous
        prefix = f"generation-{r.generation}/{r.name}"
        try:
            self._client = StoreClient.connect(
                r.host, r.port, secret=r.secret, prefix=prefix, timeout_s=r.form_timeout_s
            )
            if self._left.is_set():
                self._client.close()
                return
            self._formed = self._build(self._client)
        except (RuntimeError, OSError, ValueError) as error:
            self._failure = reason(error)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._done.set()


def _end_both(strict: StrictProcesses, end: Callable[[], None]) -> None:
    strict.end()
    end()


def reason(error: Exception) -> str:
    """What the backend says, without its source line and its greeting."""
    text = str(error).partition("\n")[0].partition(". This is typically")[0]
    return text.partition("] ")[2] if text.startswith("[/") else text
