"""Seeded schedules of faults on real hosts: what strikes a run, in which order, and how."""

import os
import random
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

from place import SHORT, slowly, until

from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.processes import kill
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.accounts.view import view_of

SHARED_MEMORY = Path("/dev/shm")
ROW = 4  # schedules
HOSTS, WORKERS = 2, 2
AFTER = 3  # steps
LOOK_S = 0.2  # a look reads the journal from its start
STEP_S = 0.25
LAYOUTS = {
    "dp": (),
    "tp2.dp2": ("parallel.tp=2",),
    "zero3": ("zero.stage=3", "checkpoint.snapshot_every=1"),
}


def schedule_of(seed, strikes):
    """The layout and the kinds of a schedule: four in a row have each kind, each equally often."""
    deck = random.Random(seed // ROW)
    kinds = deck.sample(sorted(STRIKES), len(STRIKES)) * (ROW * strikes // len(STRIKES))
    first = seed % ROW * strikes
    return sorted(LAYOUTS)[seed % len(LAYOUTS)], kinds[first : first + strikes]


class StruckRun:
    """A run of the short job that is driven from the head of real hosts, and what befalls it."""

    def __init__(self, hosts, place, seed, strikes):
        self.hosts = hosts
        self.chance = random.Random(seed)
        self.layout, self.kinds = schedule_of(seed, strikes)
        self.folder = place.root / "runs" / f"schedule-{seed}"
        self._place = place
        self._report = place.root / f"schedule-{seed}.json"
        settings = (
            "train.steps=5000", f"checkpoint.dir={self.folder}", "elastic.max_workers=4",
            "elastic.max_failures=1000", *LAYOUTS[self.layout],
        )  # fmt: skip
        sets = [word for setting in settings for word in ("--set", setting)]
        self._process = place.start(
            "run", SHORT, "--address", hosts.address, "--report", self._report, *sets,
            *slowly(STEP_S),
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def all_of_it(self):
        """Its report, once all that the schedule has befell it, and it went on each time."""
        for kind in self.kinds:
            before = self._whole()
            time.sleep(self.chance.uniform(0.0, 0.5))
            STRIKES[kind](self)
            self._trains(from_step=before.step + AFTER)
        self._name = RunFolder(self.folder).contact().run
        assert self.left()
        self._process.send_signal(signal.SIGINT)
        outcome = self._place.finish(self._process, self._report)
        assert outcome.code == 130, outcome.err + outcome.out
        return outcome.report

    def left(self):
        """What there is of the run: actors, ranks, vaults, what they are forked from, memory."""
        processes = self._processes(b"ray::Agent", b"ray::ControllerActor", b"warm_process")
        return processes + sorted(SHARED_MEMORY.glob(f"remesh-{self._name}-*"))

    def _processes(self, *words):
        commands = self.hosts.commands().items()
        return [pid for pid, command in commands if any(word in command for word in words)]

    def _whole(self):
        """It trains on all hosts; another one has come for each that was lost."""
        for host in self.hosts.up[HOSTS:]:
            self.hosts.crash(host)
        self.hosts.stand(HOSTS)
        return self._trains(HOSTS * WORKERS)

    def _trains(self, members=None, *, from_step=1):
        def found():
            time.sleep(LOOK_S)
            assert self._process.poll() is None, self._process.communicate()
            journals = read_history(self.folder).starts
            view = view_of(journals[-1].replay()) if journals else None
            if not view or view.phase != "running" or view.step < from_step:
                return None
            ranks = sum(worker.rank is not None for worker in view.workers)
            return view if members in (None, ranks) else None

        return until(found, f"{members or 'any'} members reach step {from_step}")

    def _ranks(self):
        return [pid for host in self.hosts.up for pid in self.hosts.workers(host)]

    def _freeze(self, pid, longest_s):
        for_s = self.chance.uniform(0.1, longest_s)
        with suppress(ProcessLookupError):  # one that stands still is ended
            os.kill(pid, signal.SIGSTOP)
            time.sleep(for_s)
            os.kill(pid, signal.SIGCONT)

    # The kinds.

    def kill(self):
        kill(self.chance.choice(self._ranks()))

    def freeze(self):
        self._freeze(self.chance.choice(self._ranks()), 3.0)

    def kill_node(self):
        self.hosts.crash(self.hosts.up[-1])

    def cut_off(self):
        """One that is back may be kept out for a while, so another one takes its place."""
        away = self.hosts.up[-1]
        self.hosts.cut(away)
        time.sleep(self.chance.uniform(0.1, 3.0))
        self.hosts.heal(away)
        self._trains()
        self.hosts.crash(away)

    def drain(self):
        """What is announced costs no step."""
        away = self.hosts.up[-1]
        before = self._trains().generation
        self.hosts.stand(HOSTS + 1)
        self.hosts.drain(away)
        until(lambda: not away.init, f"{away.name} leaves")
        lives = [life for life in self._trains().generations if life.generation > before]
        assert {life.lost_steps for life in lives} == {0}, lives

    def scale(self):
        self._place.remesh("scale", self.folder, "--nodes", 1)
        self._trains(WORKERS)
        self._place.remesh("scale", self.folder, "--nodes", HOSTS)

    def disk_full(self):
        """No rank can write a file for longer than from one checkpoint to the next."""
        limits = {pid: _limit(pid, 0) for pid in self._ranks()}
        self._trains(from_step=self._trains().step + 20)
        for pid, most in limits.items():
            _limit(pid, most)

    def standstill(self):
        (controller,) = self._processes(b"ray::ControllerActor")
        self._freeze(controller, 6.0)


STRIKES = {
    "kill": StruckRun.kill,
    "freeze": StruckRun.freeze,
    "kill node": StruckRun.kill_node,
    "cut off": StruckRun.cut_off,
    "drain": StruckRun.drain,
    "scale": StruckRun.scale,
    "disk full": StruckRun.disk_full,
    "standstill": StruckRun.standstill,
}


def _limit(pid, size_bytes):
    """The largest file that this process could write before; one that has ended writes none."""
    with suppress(ProcessLookupError):
        before, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, most))
        return before
    return 0
