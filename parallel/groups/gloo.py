"""A gloo process group whose connections can be found, and so be shut, by address."""

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed as dist

from remesh.parallel.doors.addresses import resolved
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.groups.sockets import Address, Connections, listeners
from remesh.parallel.groups.store import StoreClient
from remesh.parallel.groups.torch_store import TorchStore
from remesh.parallel.plan.errors import GroupError

# A new device's listener is known by being the only new one: who opens another one holds this too.
listening = threading.Lock()


def build_gloo(
    rendezvous: Rendezvous, client: StoreClient, there: dict[int, Address]
) -> tuple[dist.ProcessGroup, Callable[[], None]]:
    """The group, and what ends its operations. Blocks until all ranks are there.

    `there` gets where each of the others listens, as soon as it has come.
    """
    _, node_ip = resolved(rendezvous.node_ip)
    device, listener = _make_device(node_ip)
    _exchange_listeners(client, rendezvous, listener, there)
    peers = frozenset(there.values())
    # The only way to choose a device: the public options have none.
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
    options._devices = [device]  # noqa: SLF001
    options._timeout = timedelta(seconds=rendezvous.form_timeout_s)  # noqa: SLF001
    store = TorchStore(client)
    backend = dist.ProcessGroupGloo(store, rendezvous.rank, rendezvous.size, options)
    backend._set_default_timeout(timedelta(seconds=rendezvous.op_timeout_s))  # noqa: SLF001
    process_group = dist.ProcessGroup(store, rendezvous.rank, rendezvous.size)
    kind = dist.ProcessGroup.BackendType.GLOO
    process_group._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
    process_group._set_default_backend(kind)  # noqa: SLF001
    return process_group, Connections(listener=listener, peers=peers).shut


def _make_device(node_ip: str) -> tuple[object, Address]:
    """A gloo device on this interface, and the address at which it listens from now on."""
    with listening:
        before = listeners(node_ip)
        device = dist.ProcessGroupGloo.create_device(hostname=node_ip)
        new = listeners(node_ip) - before
    if len(new) != 1:
        raise GroupError(f"a new gloo device listens at {len(new)} addresses of {node_ip}, not 1")
    return device, new.pop()


def _exchange_listeners(
    client: StoreClient, rendezvous: Rendezvous, listener: Address, there: dict[int, Address]
) -> None:
    """Finds the addresses at which the other ranks listen. Returns once all of them are there."""
    ip, port = listener
    manner = "strict" if rendezvous.strict else "plain"
    client.set(f"listener-{rendezvous.rank}", f"{ip} {port} {manner}".encode())
    for rank in range(rendezvous.size):
        if rank != rendezvous.rank:
            other_ip, other_port, other_manner = client.get(f"listener-{rank}").decode().split()
            if other_manner != manner:
                raise GroupError(
                    f"rank {rank} forms a {other_manner} group and rank {rendezvous.rank} a "
                    f"{manner} one; start all ranks with the same REMESH_STRICT_GROUPS"
                )
            there[rank] = (other_ip, int(other_port))
