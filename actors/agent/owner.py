"""The one actor of a node, which holds its processors and devices: Ray's side of an agent.

What it does is in node_loop.py, which knows nothing of Ray. Its end is the end of every process of
the run on the node, however it comes; and when it ends by itself it leaves nothing behind.
"""

import logging
import os
import pickle
import shutil
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from remesh.actors.agent.forker import Forker
from remesh.actors.agent.node_loop import NodeLoop, NodePlace
from remesh.actors.agent.words import NodeAnswer, NodeOrders, NodeWord
from remesh.actors.cluster.warm_start import Started
from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name, remove, sweep
from remesh.actors.node.lives import Life
from remesh.actors.node.log_carrier import LogCarrier
from remesh.actors.node.own_log import log_folder_of
from remesh.actors.node.stacks import stacks_of
from remesh.actors.node.stamps import folder_of, vault_folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.orders import NAMESPACE, RunSpec

NO_PROCESS = "there is no such process here any more, or not yet\n"


class NodeOwner:
    """As `Agent`, which hands on all that it is asked; its warm process is under way."""

    def __init__(self, pickled: bytes, node: str, incarnation: int, warm: Started) -> None:
        spec: RunSpec = pickle.loads(pickled)  # noqa: S301 - of the run
        self._spec = spec
        self._node = node
        self._timers = spec.job.timers
        self._log_folder = log_folder_of(spec.run, node)
        self._logs = LogCarrier(self._log_folder, Path(spec.folder))
        self._life = Life()
        self._controller: Any = None
        self._loop = NodeLoop(
            spec,
            NodePlace(
                node=node,
                node_ip=ray.util.get_node_ip_address(),
                agent=time.time_ns(),
                devices=_devices(),
            ),
            incarnation,
            self._hear,
            Forker(pickled, os.environ, warm),
        )

    def live(self) -> None:
        """Own the node's processes until ended, or until the lease on the controller lapses."""
        end_with_own_threads(lambda _name, _error: self._logs.finish(self._timers.end_s))
        self._logs.start()
        try:
            self._controller = ray.get_actor(self._spec.controller, NAMESPACE)
            self._loop.run()
        except Exception:
            logging.getLogger(__name__).exception("the agent ends")
        finally:
            self._leave()

    def take(self, orders: NodeOrders) -> int:
        """Returns at once, with the newest controller: the orders of one before it are dropped."""
        return self._loop.take(orders)

    def outlive(self) -> None:
        self._life.outlive()

    def stacks(self, workers: tuple[str, ...]) -> dict[str, str]:
        """The Python stacks of these workers' processes, as text, or why there are none."""
        return {worker: self._stacks(worker) for worker in workers}

    def end(self) -> None:
        """End every worker of the run on this node and its vault, then the agent."""
        self._loop.end()

    def _hear(self, word: NodeWord) -> "Future[NodeAnswer]":
        hear = self._controller.hear.options(concurrency_group="beats")
        answer: Any = hear.remote(word)
        found: Future[NodeAnswer] = answer.future()
        return found

    def _stacks(self, worker: str) -> str:
        one = self._loop.household.rank(worker)
        process = one.process() if one else None
        return stacks_of(process, self._log_folder, worker) if process else NO_PROCESS

    def _leave(self) -> None:
        """The process ends whatever happens: an actor whose method has failed would stay."""
        try:
            self._loop.close()
            self._clear_shared_memory()
            self._logs.finish(self._timers.end_s)
            run, node = self._spec.run, self._node
            for folder in (folder_of(run, node), vault_folder_of(run, node), self._log_folder):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(0)

    def _clear_shared_memory(self) -> None:
        """Remove what the vault had, which may still be dying, and what dead nodes have left."""
        with suppress(OSError):  # there is none
            remove(SHARED_MEMORY / folder_name(self._spec.run, self._node))
        sweep(self._spec.run)


def _devices() -> tuple[int, ...]:
    """The indices of the accelerators that Ray gave to this actor."""
    given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return tuple(int(index) for index in given if index.isdecimal())
