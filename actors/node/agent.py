"""AgentActor: one a node, small. It watches the node's workers and can kill a frozen one by pid.

It knows the workers, and the node's vault, only by their stamp files. Its beat to the controller is
the node's sign of life; the answer renews the lease that it passes on to them by their stamps.
"""

import os
import shutil
import threading
import time
from contextlib import suppress
from typing import Any

import ray

from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name, remove, sweep
from remesh.actors.node.lives import Life
from remesh.actors.node.placement_groups import group_name, remove_group
from remesh.actors.node.private_files import make_folder
from remesh.actors.node.stamps import Field, Stamps, folder_of, vault_folder_of
from remesh.actors.orders import NAMESPACE, RunSpec

BUSY_PATIENCES = 10  # a process that is not stopped may starve or hold the GIL for so long


class Agent:
    """`live` returns when the agent ends; its death is the news of the node's death."""

    def __init__(self, spec: RunSpec, node: str) -> None:
        self._spec = spec
        self._node = node
        self._timers = spec.job.timers
        self._folder = folder_of(spec.run, node)
        make_folder(self._folder)
        self._vault_folder = vault_folder_of(spec.run, node)
        make_folder(self._vault_folder)
        self._workers: dict[str, Stamps] = {}
        self._vaults: dict[str, Stamps] = {}
        self._ended = threading.Event()
        self._life = Life()

    def live(self) -> None:
        """Beat until ended, or until the lease on the controller lapses; leave nothing behind."""
        try:
            self._beat()
        finally:
            self._leave()

    def outlive(self) -> None:
        self._life.outlive()

    def kill(self, worker: str) -> None:
        """SIGKILL this worker's process, which stops a frozen one too."""
        self._look()
        if worker in self._workers:
            self._workers[worker].kill()

    def end(self) -> None:
        """End every worker of the run on this node and its vault, then the agent."""
        self._ended.set()

    def _beat(self) -> None:
        controller = ray.get_actor(self._spec.controller, NAMESPACE)
        beat = controller.beat.options(concurrency_group="beats")
        leased_ns, num_nodes = time.monotonic_ns(), 1
        asked_ns = leased_ns
        pending: Any = None
        while not self._ended.wait(self._timers.beat_s(num_nodes)):
            if pending is None:
                asked_ns = time.monotonic_ns()
                pending = beat.remote(self._node, self._frozen())
            if ray.wait([pending], timeout=0)[0]:
                num_nodes = _answer(pending)
                # From the asking on: an answer may have been held up for as long as a partition.
                leased_ns = asked_ns if num_nodes else leased_ns
                pending = None
            self._lease(leased_ns)
            if time.monotonic_ns() - leased_ns > self._timers.lease_s * 1e9:
                return

    def _frozen(self) -> tuple[tuple[str, float], ...]:
        """(worker, seconds of silence) of each process that lives and gives no sign."""
        self._look()
        ages = [
            (name, stamps, stamps.age_s(Field.BEAT_NS)) for name, stamps in self._workers.items()
        ]
        return tuple(
            (name, age_s) for name, stamps, age_s in ages if self._is_frozen(stamps, age_s)
        )

    def _is_frozen(self, stamps: Stamps, age_s: float) -> bool:
        if age_s <= self._timers.silent_s:
            return False
        process = stamps.process()
        busy_s = BUSY_PATIENCES * self._timers.silent_s
        return process is not None and (process.stopped or age_s > busy_s)

    def _lease(self, leased_ns: int) -> None:
        for stamps in (*self._workers.values(), *self._vaults.values()):
            stamps[Field.LEASE_NS] = leased_ns

    def _look(self) -> None:
        self._workers = Stamps.open_all(self._folder, self._workers)
        self._vaults = Stamps.open_all(self._vault_folder, self._vaults)

    def _leave(self) -> None:
        """The process ends whatever happens: an actor whose method has failed would stay."""
        try:
            self._look()
            for stamps in (*self._workers.values(), *self._vaults.values()):
                stamps.kill()
            self._clear_shared_memory()
            for folder in (self._folder, self._vault_folder):
                shutil.rmtree(folder, ignore_errors=True)
            self._free_node()
        finally:
            os._exit(0)

    def _clear_shared_memory(self) -> None:
        """Remove what the vault had, which may still be dying, and what dead nodes have left."""
        with suppress(OSError):  # there is none
            remove(SHARED_MEMORY / folder_name(self._spec.run, self._node))
        sweep(self._spec.run)

    def _free_node(self) -> None:
        """Remove the node's placement group, if Ray answers; a run that lives does so itself."""
        name = group_name(self._spec.run, self._node)
        thread = threading.Thread(target=remove_group, args=(name,), daemon=True)
        thread.start()
        thread.join(self._timers.end_s)


def _answer(beat: Any) -> int:
    """The number of nodes that beat, as the controller knows it; 0 if it did not answer."""
    try:
        return int(ray.get(beat))
    except ray.exceptions.RayError:
        return 0
