"""AgentActor: one a node, small. It watches the node's workers and can kill a frozen one by pid.

It knows the workers, and the node's vault, only by their stamp files. Its beat to the controller is
the node's sign of life; the answer renews the lease that it passes on to them by their stamps.
"""

import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray

from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name, remove, sweep
from remesh.actors.node.lives import Life
from remesh.actors.node.log_carrier import LogCarrier
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.placement_groups import group_name, remove_group
from remesh.actors.node.private_files import make_folder
from remesh.actors.node.stacks import stacks_of
from remesh.actors.node.stamps import Field, Stamps, folder_of, vault_folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.orders import NAMESPACE, RunSpec
from remesh.parallel.threads import heard_thread

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
        self._log_folder = log_folder_of(spec.run, node)
        divert(self._log_folder, f"agent-{node}")
        self._logs = LogCarrier(self._log_folder, Path(spec.folder))
        self._workers: dict[str, Stamps] = {}
        self._vaults: dict[str, Stamps] = {}
        self._ended = threading.Event()
        self._life = Life()

    def live(self) -> None:
        """Beat until ended, or until the lease on the controller lapses; leave nothing behind."""
        end_with_own_threads(lambda _name, _error: self._logs.finish(self._timers.end_s))
        self._logs.start()
        try:
            self._beat()
        except Exception:
            logging.getLogger(__name__).exception("the agent ends")
        finally:
            self._leave()

    def outlive(self) -> None:
        self._life.outlive()

    def kill(self, worker: str) -> None:
        """SIGKILL this worker's process, which stops a frozen one too."""
        self._look()
        if worker in self._workers:
            self._workers[worker].kill()

    def stacks(self, workers: tuple[str, ...]) -> dict[str, str]:
        """The Python stacks of these workers' processes, as text, or why there are none."""
        self._look()
        return {worker: self._stacks(worker) for worker in workers}

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
            if time.monotonic_ns() - leased_ns > self._timers.node_lease_s(num_nodes) * 1e9:
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

    def _stacks(self, worker: str) -> str:
        process = self._workers[worker].process() if worker in self._workers else None
        if process is None:
            return "there is no such process here any more, or not yet\n"
        return stacks_of(process, self._log_folder, worker)

    def _leave(self) -> None:
        """The process ends whatever happens: an actor whose method has failed would stay."""
        try:
            self._look()
            for stamps in (*self._workers.values(), *self._vaults.values()):
                stamps.kill()
            self._clear_shared_memory()
            self._logs.finish(self._timers.end_s)
            for folder in (self._folder, self._vault_folder, self._log_folder):
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
        thread = heard_thread(partial(remove_group, name), name="group", failed=_left_to_the_run)
        thread.start()
        thread.join(self._timers.end_s)


def _left_to_the_run(_: Exception) -> None:
    """The next start of the run removes groups that were left."""


def _answer(beat: Any) -> int:
    """The number of nodes that beat, as the controller knows it; 0 if it did not answer."""
    try:
        return int(ray.get(beat))
    except ray.exceptions.RayError:
        return 0
