# ruff: noqa: ARG002 - fakes obey protocols
"""All that a trainer works with, of one rank and in one process, with places to make it wait."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import torch
from by_ranges import ByRanges
from control_values import DID
from waiting import PATIENCE_S, soon

from remesh.actors.orders import FormOrder
from remesh.actors.worker.tools import TrainerParts
from remesh.actors.worker.trainer import Trainer
from remesh.data.digest import StepDigest
from remesh.orchestrator.control.words.records import FreshState
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import Holding
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.errors import GroupError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.state.fragments import whole
from remesh.parallel.threads import heard_thread


class Gate:
    """Open unless it is shut. `arrivals` counts who has come to it."""

    def __init__(self):
        self.arrivals = 0
        self._open = threading.Event()
        self._open.set()

    def shut(self):
        self._open.clear()

    def open(self):
        self._open.set()

    def passed(self):
        self.arrivals += 1
        assert self._open.wait(PATIENCE_S)

    def wait_for(self, arrivals):
        assert soon(lambda: self.arrivals >= arrivals)


class State:
    """One tensor, held whole."""

    held = Held()

    def __init__(self):
        self.tensor = torch.zeros(4)

    def fragments(self):
        return [(whole("w", (4,), "float32"), self.tensor)]

    def counted(self):
        return self.fragments()

    def tensor_holders(self, _tensor):
        return (0,)


class Engine:
    """The value of each element is the step. `update` is where nothing can be cut short any more,
    `collective` where a fence frees, as in a group; `fault` is raised there once.
    """

    def __init__(self):
        self.at_step = None
        self.state = State()
        self.update = Gate()
        self.peer_answers = True
        self.waits = 0
        self.fault = None
        self.stepped = []

    @property
    def shard_state(self):
        return self.state

    def form(self, mesh, lengths, schedule, pipeline):
        self.mesh = mesh
        self.formed = (lengths, schedule, pipeline)

    def reset(self):
        self.at_step = 0
        self.state.tensor.zero_()

    def holding(self):
        return None if self.at_step is None else Holding(state=self.state, at_step=self.at_step)

    def put_back(self, holding):
        self.state, self.at_step = State(), None
        if holding is not None:
            self.state, self.at_step = holding.state, holding.at_step

    def share(self, holding, at_step, slots=()):
        for slot in slots:
            with slot.open() as reader:
                reader.header()
        assert holding
        assert holding.at_step == at_step

    def landing(self):
        return self.state if self.at_step is None else State()

    def adopt(self, state, at_step):
        self.state, self.at_step = state, at_step

    def step(self, step, work):
        assert self.at_step == step - 1
        work.fence.check(work.generation)
        work.stamp(step, 0, 1)
        work.fill(0, np.zeros((1, 5), np.uint16))
        if not self.peer_answers:
            self.waits += 1
            work.fence.wait(work.generation, Future())
        if self.fault:
            fault, self.fault = self.fault, None
            raise fault
        work.snapshots()
        self.update.passed()
        self.state.tensor.fill_(step)
        self.at_step = step
        self.stepped.append((work.generation, step))
        return StepResult(**{**DID, "digest": f"d{step}"}, drain=work.drain, save=work.save)


class Storage(ByRanges):
    """In memory. Reads and writes pass gates."""

    def __init__(self):
        self.files = {}
        self.reads, self.writes = Gate(), Gate()

    def get(self, path):
        self.reads.passed()
        return self.files[path]

    def get_range(self, path, offset, length):
        self.reads.passed()
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][offset : offset + length]

    def put(self, path, data):
        self.writes.passed()
        self.files[path] = bytes(data)

    def put_if_absent(self, path, data, head=None):
        if head:
            head.fill()
        self.writes.passed()
        return self.files.setdefault(path, bytes(data)) == bytes(data)

    def list(self, prefix):
        return sorted(path for path in self.files if path.startswith(prefix))

    def delete(self, path):
        self.files.pop(path, None)


class Stream:
    def __init__(self):
        self.reads = Gate()
        self.fault = None
        self.at_once = None

    def fill_at_once(self, step, first, out):
        """None as long as it all comes from a disk."""
        return self.at_once

    def fill(self, step, first, out):
        self.reads.passed()
        if self.fault:
            raise self.fault
        out[:] = step
        return StepDigest()


class Snapshots:
    """What is done with snapshots, in `log`."""

    def __init__(self, log):
        self.log = log

    def enter(self, order, mesh, state):
        self.log.append(("enter", order.generation))

    def move(self, generation, vaults):
        self.log.append(("move", generation))

    def leave(self):
        self.log.append(("leave",))

    def ballot(self, step):
        self.log.append(("ballot", step))
        return None, False

    def take(self, step):
        self.log.append(("take", step))

    def stable(self, step):
        self.log.append(("stable", step))


class NoTurns:
    def enter(self, amendments, from_step):
        pass

    def before(self, step):
        pass


class NoStrikes:
    looks_at_operations = False

    def fire(self, at):
        pass


class Alone:
    """The mesh of one rank, which says in `log` that it was left, and that this was waited for."""

    def __init__(self, rendezvous, log):
        self._mesh = Mesh.alone(rendezvous.generation)
        self._log = log

    def __getattr__(self, name):
        return getattr(self._mesh, name)

    def leave(self):
        self._log.append(("leave", self._mesh.world.size))
        return SimpleNamespace(wait=lambda: self._log.append(("gone", self._mesh.world.generation)))


class Room:
    """One whose laying out goes on until it is stopped. `left` is set when it is over, and `may` is
    what tells whether it may go on.
    """

    def __init__(self):
        self.begun, self.left = threading.Event(), threading.Event()
        self._stopped = threading.Event()

    def lay_out(self, may):
        self.may = may
        self.begun.set()
        assert self._stopped.wait(PATIENCE_S)
        self.left.set()

    def stop(self):
        self._stopped.set()


class Workbench:
    """A trainer in its thread, and all around it. `log` has what was said and done, in order."""

    def __init__(self, *, steps=3, every=100, strict_groups=False, room=None):
        self.log = []
        self.met_at = []
        self.engine, self.storage, self.stream = Engine(), Storage(), Stream()
        self.stamps = {}
        self.forms = True
        timers = Timers(patience_s=PATIENCE_S)
        job = SimpleNamespace(
            train=SimpleNamespace(steps=steps),
            checkpoint=SimpleNamespace(every=every),
            timers=timers,
        )
        self.trainer = Trainer(
            TrainerParts(
                worker="worker-0",
                node_ip="127.0.0.1",
                start=1,
                job=job,
                engine=self.engine,
                stream=self.stream,
                course=NoTurns(),
                storage=self.storage,
                stamps=self.stamps,
                faults=NoStrikes(),
                snapshots=Snapshots(self.log),
                post=self.log.append,
                form_mesh=self._form,
                strict_groups=strict_groups,
                room=room,
            )
        )
        self.ended = []
        heard_thread(self.trainer.run, name="trainer", failed=self.ended.append).start()

    def _form(self, rendezvous, fence, layout, shards):
        fence.check(rendezvous.generation)
        self.met_at.append(rendezvous)
        if not self.forms:
            raise GroupError("timed out")
        self.log.append(("form", rendezvous.generation))
        return Alone(rendezvous, self.log)

    def form(self, generation=1, **values):
        self.trainer.form(order(generation, **values))

    def said(self, *kinds):
        """The events so far, of these kinds if some are named."""
        return [
            entry
            for entry in list(self.log)
            if not isinstance(entry, tuple) and (not kinds or isinstance(entry, kinds))
        ]

    def heard(self, kind, count=1):
        """The newest event of this kind, once so many have been told."""
        assert soon(lambda: len(self.said(kind)) >= count or self.ended), self.log
        return self.said(kind)[count - 1]


def order(generation=1, *, from_step=0, restore=None, **values):
    return FormOrder(
        generation=generation,
        rank=0,
        store_host="",
        store_port=0,
        store_secret=b"",
        form_timeout_s=PATIENCE_S,
        op_timeout_s=PATIENCE_S,
        rung=values.pop("rung", Rung(layout=Layout(dp=1))),
        restore=restore or FreshState(),
        from_step=from_step,
        fills=True,
        **values,
    )
