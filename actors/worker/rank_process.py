"""A rank's process: forked with everything imported, one device, at most one rank.

The trainer has the first thread and runs for as long as the process; orders arrive on a thread of
their own, which stays responsive while the trainer is inside a collective. A third one beats and
looks at the lease. The end of the line to the agent ends the process at once: nothing outlives its
node's agent, and so nothing the controller for long.
"""

import os
import socket
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from typing import NoReturn, assert_never

from remesh.actors.node.leased_beats import beat_while_leased
from remesh.actors.node.link import ProcessEnd
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.processes import be_called
from remesh.actors.node.seats import (
    DrainOrder,
    FenceOrder,
    MoveOrder,
    RankOrder,
    RankSeat,
    SaveOrder,
)
from remesh.actors.node.stamps import Stamps, folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.node.tracebacks import traceback_of
from remesh.actors.orders import FormOrder, RunSpec
from remesh.actors.worker.preparing import build_trainer
from remesh.actors.worker.trainer import Trainer
from remesh.data.data_error import DataError
from remesh.orchestrator.control.words.events import Event, WorkerErred, WorkerLost, WorkerReady
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import masked
from remesh.parallel.plan.errors import CheckpointError, LayoutError
from remesh.parallel.threads import heard_thread

USER_ERRORS = (DataError, LayoutError, CheckpointError, UserError)
SURE_ERRORS = (LayoutError, UserError)  # on any node; the others may be of one disk


def be_rank(spec: RunSpec, seat: RankSeat, end: socket.socket) -> None:
    """Warm up, report, train on orders until an error or the end of the line."""
    be_called(seat.worker)
    RankProcess(spec, seat, ProcessEnd(end)).run()


class RankProcess:
    """Orders are passed on at once; the trainer's answers are events."""

    def __init__(self, spec: RunSpec, seat: RankSeat, end: ProcessEnd) -> None:
        self._spec = spec
        self._seat = seat
        self._end = end
        self._trainer: Trainer | None = None
        self._built = threading.Event()

    def run(self) -> NoReturn:
        try:
            self._run()
        except USER_ERRORS as error:
            _write(error)
            self._post(self._erred(error))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the last word
            _write(error)
            self._post(self._lost(f"{type(error).__name__}: {error}", error))
        finally:
            os._exit(1)

    def _run(self) -> None:
        spec, seat = self._spec, self._seat
        if seat.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(seat.device)
        divert(log_folder_of(spec.run, seat.node), seat.worker)
        end_with_own_threads(self._thread_ended)
        folder = folder_of(spec.run, seat.node)
        stamps = Stamps.create(folder, seat.worker, os.getpid(), incarnation=seat.incarnation)
        heard_thread(partial(self._beat, stamps), name="beats").start()
        heard_thread(self._obey_all, name="orders").start()
        self._trainer = build_trainer(spec, seat, stamps, self._post)
        self._built.set()
        self._post(
            WorkerReady(worker=seat.worker, node=seat.node, pid=os.getpid(), device=seat.device)
        )
        self._trainer.run()

    def _beat(self, stamps: Stamps) -> NoReturn:
        beat_while_leased(stamps, self._spec.job.timers)
        os._exit(1)

    def _obey_all(self) -> NoReturn:
        while True:
            try:
                order = self._end.receive()
            except (EOFError, OSError):  # the agent is gone
                os._exit(1)
            self._built.wait()
            if self._trainer:
                _obey(self._trainer, order)

    def _post(self, event: Event) -> None:
        try:
            self._end.send(event)
        except OSError:  # the agent is gone
            os._exit(1)

    def _erred(self, error: Exception) -> WorkerErred:
        return WorkerErred(
            worker=self._seat.worker,
            generation=self._trainer.generation if self._trainer else 0,
            error=str(error),
            user_error=True,
            certain=isinstance(error, SURE_ERRORS),
            traceback=traceback_of(error),
        )

    def _lost(self, cause: str, error: BaseException) -> WorkerLost:
        return WorkerLost(worker=self._seat.worker, cause=cause, traceback=traceback_of(error))

    def _thread_ended(self, name: str, error: BaseException) -> None:
        cause = f"its thread {name} ended with {type(error).__name__}: {error}"
        self._post(self._lost(cause, error))


def _obey(trainer: Trainer, order: RankOrder) -> None:
    match order:
        case FormOrder():
            trainer.form(order)
        case FenceOrder():
            trainer.fence(order.generation, order.heard_step)
        case DrainOrder():
            trainer.drain(order.generation, save=order.save, heard_step=order.heard_step)
        case SaveOrder():
            trainer.save_held(order.generation, order.step)
        case MoveOrder():
            trainer.move(order.generation, order.vaults)
        case _:
            assert_never(order)


def _write(error: BaseException) -> None:
    """To the worker's own log, which is kept; the whole of it, masked as all that is shown."""
    with suppress(OSError):  # no room for it: what it died of is told all the same
        sys.stderr.write(masked("".join(traceback.format_exception(error))))
