"""Eight warm processes for the whole session; each test forms new generations in them.

Spawning eight processes that import torch takes 6-15 s, forking them from one that has it takes a
fifth of a second. A test hands over a function of its own file: it runs as `function(seat, *args)`
on each process, and what it returns comes back. Processes that a test kills or leaves frozen are
replaced before the next one.

Nothing times out by itself: a rank that is freed was freed by what a test did. Words, which the
processes and the test say and hear, stand where the one has to wait for the other.
"""

import gc
import importlib.util
import inspect
import itertools
import multiprocessing
import os
import signal
import time
import traceback
from dataclasses import dataclass, replace

import psutil
from waiting import NEVER_S, PATIENCE_S

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.groups.store import StoreClient

NUM_PROCESSES = 8
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Seat:
    """A process's place in one run of the pool."""

    rank: int
    size: int
    port: int
    secret: bytes
    generation: int
    strict: bool = False

    def rendezvous(self, *, generation=None, form_timeout_s=PATIENCE_S / 2, op_timeout_s=NEVER_S):
        return Rendezvous(
            host=HOST,
            port=self.port,
            secret=self.secret,
            generation=self.generation if generation is None else generation,
            rank=self.rank,
            size=self.size,
            node_ip=f"127.0.0.{self.rank + 2}",
            form_timeout_s=form_timeout_s,
            op_timeout_s=op_timeout_s,
            strict=self.strict,
        )

    def say(self, word):
        words(self.port, self.secret, self.generation).set(f"{word} {self.rank}", b"")

    def hear(self, word, of="test"):
        """Returns once the test, or the process of that rank, has said so."""
        words(self.port, self.secret, self.generation).get(f"{word} {of}")

    def form_alone(self):
        return Group.form(replace(self.rendezvous(), rank=0, size=1), GenerationFence())

    def form_part(self, size, number):
        """A group of the first `size` processes; `number` tells such groups of one run apart."""
        generation = self.generation * 1000 + 10**9 + number
        return Group.form(
            replace(self.rendezvous(generation=generation), size=size), GenerationFence()
        )

    def mesh(self, layout=None, shard_size=1, fence=None, **timeouts):
        return Mesh.form(
            self.rendezvous(**timeouts), fence or GenerationFence(), layout, shard_size
        )

    def mesh_part(self, size, number):
        """As `form_part`, for a mesh of replicas."""
        generation = self.generation * 1000 + 10**9 + number
        return Mesh.form(
            replace(self.rendezvous(generation=generation), size=size), GenerationFence()
        )

    def form(self, fence=None, **timeouts):
        return Group.form(self.rendezvous(**timeouts), fence or GenerationFence())


def words(port, secret, generation):
    prefix = f"words-{generation}"
    return StoreClient.connect(HOST, port, secret=secret, prefix=prefix, timeout_s=PATIENCE_S)


class FailedError(Exception):
    """A function of a test raised in a process of the pool; the text is its traceback."""


class Run:
    """A function at work in some processes of the pool."""

    def __init__(self, processes, store, generation):
        self.processes = processes
        self._words = words(*store, generation)
        self.pids = [process.pid for process, _ in processes]

    def signal(self, rank, number):
        os.kill(self.pids[rank], number)

    def say(self, word):
        self._words.set(f"{word} test", b"")

    def hear(self, word, ranks=None):
        """Returns once these ranks, all by default, have said so."""
        for rank in range(len(self.processes)) if ranks is None else ranks:
            self._words.get(f"{word} {rank}")

    def results(self, ranks=None):
        """What the function returned on these ranks, all by default."""
        deadline_s = time.monotonic() + PATIENCE_S
        ranks = range(len(self.processes)) if ranks is None else ranks
        outcomes = [self._receive(rank, deadline_s) for rank in ranks]
        for rank, (ok, value) in zip(ranks, outcomes, strict=True):
            if not ok:
                raise FailedError(f"rank {rank}: {value}")
        return [value for _, value in outcomes]

    def _receive(self, rank, deadline_s):
        _, pipe = self.processes[rank]
        if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
            return False, "no answer in time"
        try:
            return pipe.recv()
        except EOFError:
            return False, "the process died"


class Pool:
    """`strict` has all groups formed from now on name what only a device would show."""

    def __init__(self, port, secret):
        self.strict = os.environ.get("REMESH_STRICT_GROUPS") == "1"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "pytest", "remesh.parallel.step.engine"])
        self._store = (port, secret)
        self._generations = itertools.count()
        self._idle = [self._spawn() for _ in range(NUM_PROCESSES)]
        self._used = []

    def start(self, function, size, *args):
        """Starts `function(seat, *args)` in `size` processes."""
        self.reclaim()
        while len(self._idle) < size:
            self._idle.append(self._spawn())
        taken, self._idle = self._idle[:size], self._idle[size:]
        generation = next(self._generations)
        task = (inspect.getfile(function), function.__name__)
        for rank, (_, pipe) in enumerate(taken):
            seat = Seat(rank, size, *self._store, generation, strict=self.strict)
            pipe.send((*task, (seat, *args)))
        self._used.append(Run(taken, self._store, generation))
        return self._used[-1]

    def run(self, function, size, *args):
        return self.start(function, size, *args).results()

    def reclaim(self):
        """Takes back who has finished; ends who has not."""
        used, self._used = self._used, []
        for process, pipe in itertools.chain.from_iterable(run.processes for run in used):
            if process.is_alive() and is_idle(process, pipe):
                self._idle.append((process, pipe))
            else:
                end(process)

    def close(self):
        self.reclaim()
        for process, _ in self._idle:
            end(process)

    def _spawn(self):
        here, there = self._context.Pipe()
        process = self._context.Process(target=serve, args=(there,), daemon=True)
        process.start()
        there.close()
        return process, here


def is_idle(process, pipe):
    """Whether the process behind the pipe answers a ping; late results are thrown away."""
    if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
        return False
    try:
        pipe.send(None)
        while pipe.poll(5):
            if pipe.recv() == "idle":
                return True
    except (OSError, EOFError):
        pass
    return False


def end(process):
    process.kill()
    process.join(5)


def serve(pipe):
    """Life of a process of the pool."""
    import torch  # noqa: PLC0415 - in the child: the parent's threads would not survive the fork

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # a test that counts tensors looks at what it has made, not at a million objects
    modules = {}
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send("idle" if task is None else outcome(task, modules))


def outcome(task, modules):
    path, name, args = task
    try:
        if path not in modules:
            modules[path] = load(path)
        return True, getattr(modules[path], name)(*args)
    except BaseException:  # noqa: BLE001 - it is shown by the parent
        return False, traceback.format_exc()


def load(path):
    spec = importlib.util.spec_from_file_location(f"pool_{os.path.basename(path)[:-3]}", path)  # noqa: PTH119
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
