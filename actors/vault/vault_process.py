"""The vault's process, one a node: it owns the memory of the snapshots of its ranks and of guests.

It is a process of its own, so that a snapshot outlives the worker that took it. It is the agent's,
as the ranks are: it ends with the agent's end of the line, and lives by the same lease. What it
leaves when it is killed, the process that it was forked from or the next vault removes.
"""

import logging
import os
import socket
from contextlib import ExitStack, suppress
from typing import NoReturn

from remesh.actors.node.leased_beats import beat_while_leased
from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name, sweep_all
from remesh.actors.node.link import ProcessEnd
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.processes import be_called
from remesh.actors.node.seats import VaultSeat
from remesh.actors.node.stamps import VAULT, Stamps, vault_folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.orders import RunSpec
from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.orchestrator.control.words.events import VaultTold, VaultUp
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.parallel.threads import heard_thread


def be_vault(spec: RunSpec, seat: VaultSeat, end: socket.socket) -> None:
    """Serve until the lease lapses or the line ends."""
    be_called(f"vault-{seat.node}")
    VaultProcess(spec, seat, ProcessEnd(end)).run()


class VaultProcess:
    """Its death is the news that its snapshots are gone."""

    def __init__(self, spec: RunSpec, seat: VaultSeat, end: ProcessEnd) -> None:
        self._spec = spec
        self._seat = seat
        self._end = end
        self._timers = spec.job.timers
        self._memory = VaultMemory(
            SHARED_MEMORY / folder_name(spec.run, seat.node),
            limit_bytes=spec.job.checkpoint.vault_bytes,
        )
        self._shelf = KeptShelf(self._memory)

    def run(self) -> NoReturn:
        divert(log_folder_of(self._spec.run, self._seat.node), f"vault-{self._seat.node}")
        end_with_own_threads(lambda _name, _error: None)  # its death says it
        try:
            with ExitStack() as opened:
                self._serve(opened)
        except Exception:
            logging.getLogger(__name__).exception("the vault ends")
        finally:
            os._exit(1)

    def _serve(self, opened: ExitStack) -> None:
        folder = vault_folder_of(self._spec.run, self._seat.node)
        stamps = Stamps.create(folder, VAULT, os.getpid(), incarnation=self._seat.incarnation)
        with suppress(OSError):
            sweep_all()
        opened.callback(self._memory.close)
        self._memory.open()
        server = VaultServer.open(
            self._seat.node_ip,
            self._shelf,
            token=self._spec.vault_token,
            timers=self._timers,
        )
        opened.callback(server.close)
        heard_thread(self._answer_all, name="orders").start()
        self._end.send(VaultUp(node=self._seat.node, address=server.address))
        beat_while_leased(stamps, self._timers)

    def _answer_all(self) -> NoReturn:
        """AskVault, once what is being sealed is sealed."""
        try:
            while True:
                self._tell(self._end.receive().generation)
        except (EOFError, OSError):  # the agent is gone
            self._memory.close()
            os._exit(1)

    def _tell(self, generation: int) -> None:
        found = self._shelf.told(generation, self._timers.silent_s)
        slots = tuple(
            VaultSlot(
                vault=self._seat.node,
                held=one.held,
                generation=one.generation,
                step=one.step,
            )
            for one in found
        )
        self._end.send(VaultTold(node=self._seat.node, generation=generation, slots=slots))
