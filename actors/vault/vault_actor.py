"""VaultActor: one a node; it owns the memory of the snapshots of the node's ranks and of guests.

It is a process of its own, so that a snapshot outlives the worker that took it. It ends with the
agent of its node, which knows it by its stamps as it knows the workers, and whose lease it lives
by; what it leaves when it is killed, the agent or the next vault removes.
"""

import logging
import os
import time
from contextlib import ExitStack, suppress

import ray

from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name, sweep_all
from remesh.actors.node.lives import Life
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.stamps import Field, Stamps, vault_folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.orders import NAMESPACE, RunSpec
from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.orchestrator.control.words.events import Event, VaultTold, VaultUp
from remesh.orchestrator.control.words.records import VaultSlot


class VaultActor:
    """`live` returns when the vault ends; its death is the news that its snapshots are gone."""

    def __init__(self, spec: RunSpec, node: str) -> None:
        self._spec = spec
        self._node = node
        self._timers = spec.job.timers
        self._memory = VaultMemory(
            SHARED_MEMORY / folder_name(spec.run, node),
            limit_bytes=spec.job.checkpoint.vault_bytes,
        )
        self._shelf = KeptShelf(self._memory)
        self._life = Life()

    def live(self) -> None:
        """Serve until the lease lapses; leave nothing behind."""
        divert(log_folder_of(self._spec.run, self._node), f"vault-{self._node}")
        end_with_own_threads(lambda _name, _error: None)  # its death says it
        try:
            with ExitStack() as opened:
                self._serve(opened)
        except Exception:
            logging.getLogger(__name__).exception("the vault ends")
        finally:
            os._exit(0)

    def outlive(self) -> None:
        self._life.outlive()

    def tell(self, generation: int) -> None:
        """Answer AskVaults, once what is being sealed is sealed."""
        found = self._shelf.told(generation, self._timers.silent_s)
        slots = tuple(
            VaultSlot(vault=self._node, held=one.held, generation=one.generation, step=one.step)
            for one in found
        )
        self._post(VaultTold(node=self._node, generation=generation, slots=slots))

    def _serve(self, opened: ExitStack) -> None:
        stamps = Stamps.create(vault_folder_of(self._spec.run, self._node), "vault", os.getpid())
        with suppress(OSError):
            sweep_all()
        opened.callback(self._memory.close)
        self._memory.open()
        server = VaultServer.open(
            ray.util.get_node_ip_address(),
            self._shelf,
            token=self._spec.vault_token,
            timers=self._timers,
        )
        opened.callback(server.close)
        self._post(VaultUp(node=self._node, address=server.address))
        while stamps.age_s(Field.LEASE_NS) < self._timers.lease_s:
            stamps[Field.BEAT_NS] = time.monotonic_ns()
            time.sleep(self._timers.silent_s / 5)

    def _post(self, event: Event) -> None:
        controller = ray.get_actor(self._spec.controller, NAMESPACE)
        controller.post.options(concurrency_group="inbox").remote(event)
