"""The ranks of one collective as a value: formed, used, and ended at any moment.

A group is a thin wrapper around a raw ProcessGroup that is registered nowhere: a registered one is
kept alive by torch's private caches, its sockets stay open, survivors block and re-forming fails.

Every wait here can be ended from outside. Once a group stands, shutting its connections makes each
blocked operation raise, on this rank and then on its neighbours. Of operations that slept through
the end of their peers (the process was frozen) about one in four does not notice: it is left
behind a moment later, and its tensors must not be used again. While a group forms there may be no
connection to shut yet (the peer that ought to connect is dead), so the forming itself runs in a
thread of its own, which is left behind when the fence rises or the time is up: it touches no
tensor, and what it has built is dropped.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store

from remesh.parallel.errors import Cancelled, GroupError
from remesh.parallel.fence import Fence
from remesh.parallel.sockets import Address, Connections, listeners
from remesh.parallel.store import StoreClient

_POLL_S = 0.005
_DROP_S = 0.2
_PATIENCE = timedelta(seconds=0.1)  # until an operation behind the fence is left
_device_making = threading.Lock()  # a new listener is known by being the only new one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where and as whom a rank forms a group. Two groups never share (store, generation, name).

    `form_timeout_s` bounds the forming, `op_timeout_s` each operation. Both are the last resort:
    the fence is what ends a generation.
    """

    host: str
    port: int
    generation: int
    rank: int
    size: int
    node_ip: str
    form_timeout_s: float
    op_timeout_s: float
    name: str = "world"


class Pending(Protocol):
    """An operation under way: what torch calls a Work."""

    def wait(self, timeout: timedelta) -> bool: ...

    def is_completed(self) -> bool: ...


Begin = Callable[[dist.ProcessGroup], Pending | Sequence[Pending]]


class Group:
    """The ranks of one generation that compute together. `bytes_sent` counts payload only."""

    def __init__(
        self, rendezvous: Rendezvous, fence: Fence, parts: "_Parts | None", key: object
    ) -> None:
        self.rank = rendezvous.rank
        self.size = rendezvous.size
        self.generation = rendezvous.generation
        self.fence = fence
        self.bytes_sent = 0
        self._parts = parts
        self._key = key
        self._connections = parts.connections if parts else None

    @staticmethod
    def form(rendezvous: Rendezvous, fence: Fence) -> "Group":
        """The group, once every rank of it is there. A rank alone needs no sockets.

        Cost: 3-10 ms at 2-8 ranks on one host.
        Raises: Cancelled if the fence rises meanwhile or has risen before; GroupError if a rank
            does not come within the time, or goes.
        """
        fence.check(rendezvous.generation)
        if rendezvous.size == 1:
            return Group(rendezvous, fence, None, None)
        parts = _Forming(rendezvous).wait(fence)
        try:
            key = fence.guard(rendezvous.generation, parts.connections.shut)
        except Cancelled:
            _drop(parts)
            raise
        return Group(rendezvous, fence, parts, key)

    def start(self, begin: Begin, sent_bytes: int) -> "Operation":
        """Starts an operation. All ranks start the same ones in the same order.

        Raises: as `Operation.wait`.
        """
        self.fence.check(self.generation)
        if self._parts is None:
            raise GroupError(f"the group of generation {self.generation} is closed")
        try:
            pending = begin(self._parts.process_group)
        except RuntimeError as error:
            failure = _reason(error)
        else:
            return Operation(self, pending, sent_bytes)
        raise self._failed(failure)

    def run(self, begin: Begin, sent_bytes: int) -> None:
        """Starts an operation and waits for it. Raises: as `Operation.wait`."""
        self.start(begin, sent_bytes).wait()

    def shutdown_sockets(self) -> None:
        """Ends every operation of this group, here and at the neighbours. From any thread."""
        if self._connections is not None:
            self._connections.shut()

    def close(self) -> None:
        """Drops the group and its sockets. Repeatable; not while another thread runs operations."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        self.fence.release(self._key)
        self.shutdown_sockets()
        _drop(parts)

    def _finish(self, pending: list[Pending], sent_bytes: int) -> None:
        try:
            for part in pending:
                self._wait(part)
        except RuntimeError as error:
            failure = _reason(error)
        else:
            self.bytes_sent += sent_bytes
            return
        pending.clear()
        raise self._failed(failure)

    def _failed(self, failure: str) -> GroupError:
        """To be raised out of any handler: no traceback may keep an operation's tensors alive.

        Raises: Cancelled if the fence is the reason.
        """
        self.shutdown_sockets()
        self.fence.check(self.generation)
        return GroupError(failure)

    def _wait(self, pending: Pending) -> None:
        """Raises: RuntimeError if it fails, or does not end within a moment of the fence."""
        while True:
            over = self.fence.is_up(self.generation)
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


class Operation:
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

    def then(self, finish: Callable[[], object]) -> "Operation":
        """The same operation, which ends with `finish`."""
        self._finish = finish
        return self

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


@dataclass(slots=True, kw_only=True)
class _Parts:
    process_group: dist.ProcessGroup
    connections: Connections


class _Forming:
    """One attempt to form a group, in a thread that can be left behind."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._done = threading.Event()
        self._left = threading.Event()
        self._client: StoreClient | None = None
        self._parts: _Parts | None = None
        self._failure = ""

    def wait(self, fence: Fence) -> _Parts:
        deadline_s = time.monotonic() + self._rendezvous.form_timeout_s
        threading.Thread(target=self._run, name="form", daemon=True).start()
        try:
            while not self._done.wait(_POLL_S):
                fence.check(self._rendezvous.generation)
                if time.monotonic() > deadline_s:
                    raise GroupError(f"{self._who()} waited {self._rendezvous.form_timeout_s:g} s")
        finally:
            self._left.set()
            if self._client is not None:
                self._client.close()
        if self._parts is None:
            raise GroupError(f"{self._who()}: {self._failure}")
        return self._parts

    def _who(self) -> str:
        r = self._rendezvous
        return f"rank {r.rank} of {r.size} could not form generation {r.generation}"

    def _run(self) -> None:
        r = self._rendezvous
        prefix = f"generation-{r.generation}/{r.name}"
        try:
            self._client = StoreClient.connect(
                r.host, r.port, prefix=prefix, timeout_s=r.form_timeout_s
            )
            if self._left.is_set():
                self._client.close()
                return
            self._parts = _build(r, self._client)
        except (RuntimeError, OSError, ValueError) as error:
            self._failure = _reason(error)
        finally:
            self._done.set()


def _build(rendezvous: Rendezvous, client: StoreClient) -> _Parts:
    device, listener = _make_device(rendezvous.node_ip)
    peers = _exchange_listeners(client, rendezvous, listener)
    # The only way to choose a device: the public options have none.
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
    options._devices = [device]  # noqa: SLF001
    options._timeout = timedelta(seconds=rendezvous.form_timeout_s)  # noqa: SLF001
    store = _Store(client)
    backend = dist.ProcessGroupGloo(store, rendezvous.rank, rendezvous.size, options)
    backend._set_default_timeout(timedelta(seconds=rendezvous.op_timeout_s))  # noqa: SLF001
    process_group = dist.ProcessGroup(store, rendezvous.rank, rendezvous.size)
    kind = dist.ProcessGroup.BackendType.GLOO
    process_group._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
    process_group._set_default_backend(kind)  # noqa: SLF001
    return _Parts(
        process_group=process_group, connections=Connections(listener=listener, peers=peers)
    )


class _Store(Store):
    """What gloo asks of a store while it connects; torch calls it by inheritance only."""

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        return self._client.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        del timeout  # the connection has its own
        for key in keys:
            self._client.get(key)


def _make_device(node_ip: str) -> tuple[object, Address]:
    """A gloo device on this interface, and the address at which it listens from now on."""
    with _device_making:
        before = listeners(node_ip)
        device = dist.ProcessGroupGloo.create_device(hostname=node_ip)
        new = listeners(node_ip) - before
    if len(new) != 1:
        raise GroupError(f"a new gloo device listens at {len(new)} addresses of {node_ip}, not 1")
    return device, new.pop()


def _exchange_listeners(
    client: StoreClient, rendezvous: Rendezvous, listener: Address
) -> frozenset[Address]:
    """Addresses at which the other ranks listen. Returns once all of them are there."""
    ip, port = listener
    client.set(f"listener-{rendezvous.rank}", f"{ip} {port}".encode())
    others = [rank for rank in range(rendezvous.size) if rank != rendezvous.rank]
    texts = [client.get(f"listener-{rank}").decode().split() for rank in others]
    return frozenset((other_ip, int(other_port)) for other_ip, other_port in texts)


def _reason(error: Exception) -> str:
    """What gloo says, without its source line and its greeting."""
    text = str(error).partition("\n")[0].partition(". This is typically")[0]
    return text.partition("] ")[2] if text.startswith("[/") else text


def _drop(parts: _Parts) -> None:
    """Gives the group up in a thread: its destructor waits for operations that cannot end."""
    held = [parts.process_group]
    del parts.process_group
    thread = threading.Thread(target=held.clear, name="drop", daemon=True)
    thread.start()
    thread.join(_DROP_S)
