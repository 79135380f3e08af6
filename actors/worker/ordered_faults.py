"""Faults on order: `--kill` and `--fault` by the process's own hand, each exactly once.

Before it strikes, a fault is claimed in the run's storage with the moment. The claim keeps it from
striking again when the step is computed again, and tells the controller when a process died.
"""

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from remesh.actors.node.processes import kill, session_members
from remesh.actors.orders import RunSpec
from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.struck_storage import StruckStorage
from remesh.orchestrator.control.words.events import Event, StepsDone
from remesh.orchestrator.control.words.run_format import DamagedFileError, from_file, to_file
from remesh.orchestrator.job.faults_on_order import BEGIN, Moment, OrderedFault
from remesh.parallel.groups.sockets import shut_all

DEATHS = ("kill", "kill-node")
STANDS_STILL_S = 5.0


class Faults:
    """Those of one start of a run, seen from one worker. `disk` is what its files go to."""

    def __init__(
        self, *, spec: RunSpec, worker: str, node: str, storage: LocalStorage, disk: StruckStorage
    ) -> None:
        self._spec = spec
        self._worker = worker
        self._node = node
        self._storage = storage
        self._disk = disk
        self._pace = StepPace()

    @property
    def looks_at_operations(self) -> bool:
        """Whether any of them strikes within a step."""
        return any(fault.operation != BEGIN for fault in self._spec.faults)

    def fire(self, at: Moment) -> None:
        """Whatever was asked for here and now; comes back from what the worker survives."""
        for index, fault in enumerate(self._spec.faults):
            if fault.strikes(at):
                name = self._node if fault.kind == "kill-node" else self._worker
                if _claim(self._storage, self._spec, index, name):
                    self._strike(fault)
        if at.operation == BEGIN:
            self._pace.keep((at.generation, at.step))

    def _strike(self, fault: OrderedFault) -> None:
        match fault.kind:
            case "kill":
                kill(os.getpid())
            case "kill-node":
                _end_session()
            case "freeze":
                _stop_for(fault.for_s)
            case "hang":
                _hang_for(fault.for_s)
            case "slow":
                self._pace.slow(fault.times, fault.steps, fault.for_s)
            case "disconnect":
                shut_all()
            case "disk-full":
                self._disk.fill(time.monotonic() + (fault.for_s or math.inf))
            case "storage-stands-still":
                self._disk.stop(time.monotonic() + (fault.for_s or STANDS_STILL_S))
            case _:
                raise AssertionError(f"{fault.kind} strikes no rank")


class StepPace:
    """How long a rank takes for a step, which may be told to be longer."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now_s = now_s
        self._sleep = sleep
        self._times = 1.0
        self._steps = 0
        self._for_s: float | None = None
        self._step = (0, 0)
        self._began_s = 0.0

    def slow(self, times: float, steps: int, for_s: float | None = None) -> None:
        """The next steps take so many times as long as the one before each of them, or `for_s`
        longer.
        """
        self._times, self._steps, self._for_s = times, steps, for_s

    def keep(self, step: tuple[int, int]) -> None:
        """A step begins, of a generation; only of one right after another is known how long."""
        took_s = self._now_s() - self._began_s
        follows, self._step = step == (self._step[0], self._step[1] + 1), step
        if self._steps and follows:
            self._steps -= 1
            self._sleep((self._times - 1) * took_s if self._for_s is None else self._for_s)
        self._began_s = self._now_s()


class ControllerFaults:
    """Those of the controller, which looks at what it hears."""

    def __init__(self, spec: RunSpec, storage: LocalStorage) -> None:
        self._spec = spec
        self._storage = storage

    def heard(self, event: Event) -> None:
        """Die or stop now, if a fault names this step."""
        if not (self._spec.faults and isinstance(event, StepsDone) and event.records):
            return
        for index, fault in enumerate(self._spec.faults):
            if fault.strikes_controller(event.generation, event.records[-1].step) and _claim(
                self._storage, self._spec, index, "controller"
            ):
                if fault.kind == "kill-controller":
                    kill(os.getpid())
                _stop_for(fault.for_s or STANDS_STILL_S)


def died_at_s(spec: RunSpec, storage: LocalStorage, name: str) -> float | None:
    """Unix time at which this worker or node died on order, None if it did not."""
    for index, fault in enumerate(spec.faults):
        claim = _read(storage, _path(spec, index)) if fault.kind in DEATHS else None
        if claim and claim.get("struck") == name and isinstance(claim.get("at_s"), float):
            return float(claim["at_s"])
    return None


def _claim(storage: LocalStorage, spec: RunSpec, index: int, name: str) -> bool:
    claim = to_file({"struck": name, "at_s": time.time()})
    try:
        return storage.put_if_absent(_path(spec, index), claim)
    except OSError:  # no room: it would strike again and again
        return False


def _path(spec: RunSpec, index: int) -> str:
    return f"faults/{spec.run}-{index}.json"


def _read(storage: LocalStorage, path: str) -> Any:
    try:
        return from_file(storage.get(path), path, "delete it")
    except (OSError, DamagedFileError):  # no such claim, or nobody can tell
        return None


def _stop_for(for_s: float | None) -> None:
    """Stops this process; another one has it go on, if it ever is to."""
    me = os.getpid()
    if for_s is not None:
        words = ["sh", "-c", 'sleep "$0" && kill -CONT "$1"', str(for_s), str(me)]
        subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    os.kill(me, signal.SIGSTOP)


def _hang_for(for_s: float | None) -> None:
    """In a read of a pipe into which nobody writes: no stop, and no wait that a fence could end."""
    reader, writer = os.pipe()
    select.select([reader], [], [], for_s)
    os.close(reader)
    os.close(writer)


def _end_session() -> None:
    """The node is every process of this one's session (local_cluster.py); this one goes last."""
    me = os.getpid()
    for pid in session_members({os.getsid(0)}):
        if pid != me:
            kill(pid)
    kill(me)
