"""WorkerActor: one process, one device, at most one rank.

`live` is the trainer thread and runs for as long as the worker; orders arrive on control threads,
which stay responsive while the trainer is inside a collective. A third thread beats and looks at
the lease: without a lease a worker ends itself, so that nothing outlives its controller for long.
The controller imports this module too, so torch is loaded by the worker's own process only.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from remesh.actors.node.lives import Life
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.stamps import Field, Stamps, folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.node.tracebacks import traceback_of
from remesh.actors.orders import NAMESPACE, FormOrder, RunSpec, VaultOrder
from remesh.data.data_error import DataError
from remesh.orchestrator.control.words.events import Event, WorkerErred, WorkerLost, WorkerReady
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import masked
from remesh.parallel.plan.errors import CheckpointError, LayoutError
from remesh.parallel.threads import heard_thread

if TYPE_CHECKING:
    from remesh.actors.worker.trainer import Trainer

USER_ERRORS = (DataError, LayoutError, CheckpointError, UserError)
SURE_ERRORS = (LayoutError, UserError)  # on any node; the others may be of one disk


class WorkerActor:
    """Calls on the control threads return at once; the trainer's answers are events."""

    def __init__(self, spec: RunSpec, worker: str, node: str) -> None:
        self._spec = spec
        self._worker = worker
        self._node = node
        self._trainer: Trainer | None = None
        self._life = Life()

    def live(self) -> None:
        """Warm up, report, train on orders until an error: with it the process ends."""
        try:
            self._live()
        finally:
            os._exit(1)

    def _live(self) -> None:
        controller = ray.get_actor(self._spec.controller, NAMESPACE)
        post = partial(_post, controller)
        try:
            from remesh.actors.worker.preparing import build_trainer  # noqa: PLC0415 - loads torch

            divert(log_folder_of(self._spec.run, self._node), self._worker)
            end_with_own_threads(partial(self._thread_ended, post))
            stamps = self._begin_to_beat()
            self._trainer = build_trainer(self._spec, self._worker, self._node, stamps, post)
            post(self._ready())
            self._trainer.run()
        except USER_ERRORS as error:
            _write(error)
            self._last_word(post(self._erred(error)))
        except BaseException as error:
            _write(error)
            self._last_word(post(self._lost(f"{type(error).__name__}: {error}", error)))
            raise

    def outlive(self) -> None:
        self._life.outlive()

    def form(self, order: FormOrder) -> None:
        if self._trainer:
            self._trainer.form(order)

    def fence(self, generation: int, heard_step: int) -> None:
        if self._trainer:
            self._trainer.fence(generation, heard_step)

    def drain(self, generation: int, save: bool) -> None:  # noqa: FBT001 - actor calls are positional
        if self._trainer:
            self._trainer.drain(generation, save=save)

    def move(self, generation: int, vaults: VaultOrder) -> None:
        if self._trainer:
            self._trainer.move(generation, vaults)

    def _begin_to_beat(self) -> Stamps:
        stamps = Stamps.create(folder_of(self._spec.run, self._node), self._worker, os.getpid())
        heard_thread(partial(self._beat, stamps), name="beats").start()
        return stamps

    def _beat(self, stamps: Stamps) -> None:
        timers = self._spec.job.timers
        while stamps.age_s(Field.LEASE_NS) < timers.lease_s:
            stamps[Field.BEAT_NS] = time.monotonic_ns()
            time.sleep(timers.silent_s / 5)
        os._exit(1)

    def _ready(self) -> WorkerReady:
        """The word that it is warm, with the index of the GPU that it was given, if it was."""
        given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        indices = [int(index) for index in given if index.isdecimal()]
        return WorkerReady(
            worker=self._worker,
            node=self._node,
            pid=os.getpid(),
            device=next(iter(indices), None),
        )

    def _erred(self, error: Exception) -> WorkerErred:
        return WorkerErred(
            worker=self._worker,
            generation=self._trainer.generation if self._trainer else 0,
            error=str(error),
            user_error=True,
            certain=isinstance(error, SURE_ERRORS),
            traceback=traceback_of(error),
        )

    def _lost(self, cause: str, error: BaseException) -> WorkerLost:
        return WorkerLost(worker=self._worker, cause=cause, traceback=traceback_of(error))

    def _thread_ended(self, post: Callable[[Event], Any], name: str, error: BaseException) -> None:
        cause = f"its thread {name} ended with {type(error).__name__}: {error}"
        self._last_word(post(self._lost(cause, error)))

    def _last_word(self, answer: Any) -> None:
        """Wait, for a while, until it has arrived."""
        timers = self._spec.job.timers
        ray.wait([answer], timeout=timers.form_s)


def _write(error: BaseException) -> None:
    """To the worker's own log, which is kept; the whole of it, masked as all that is shown."""
    sys.stderr.write(masked("".join(traceback.format_exception(error))))


def _post(controller: Any, event: Event) -> Any:
    return controller.post.options(concurrency_group="inbox").remote(event)
