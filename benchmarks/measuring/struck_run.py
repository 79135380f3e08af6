"""A live run on a local cluster, with somebody beside it who kills, freezes and scales.

What each blow cost is read from the run's journal afterwards: the injector knows the moment of the
blow, and the ranks tell when each step ended.
"""

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.processes import look, session_members
from remesh.orchestrator.accounts.view import View, view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words.events import Event, StepsDone, WorkerParked, WorkerReady
from remesh.orchestrator.control.words.records import StepRecord

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
LOOK_S = 0.1
T = TypeVar("T")

SETTLED = 4  # steps of a mesh before the next blow
STEPS = 10**6  # more than it comes to


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """`new_s` is from the blow to the end of the first new step, `beyond_s` less that step itself
    and those that were trained twice.

    `again` counts these, which took `again_s`. `ready_s` is when a replacement was warm, and `kept`
    whether every other process lived on.
    """

    new_s: float
    beyond_s: float
    again: int
    again_s: float
    kept: bool
    ready_s: float | None = None


@dataclass(slots=True)
class StruckRun:
    """A run in this folder; blows fall at moments that `chance` draws."""

    folder: Path
    workers: int
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def view(self) -> View | None:
        starts = read_history(self.folder).starts
        return view_of(starts[-1].replay()) if starts else None

    def settled(self, workers: int | None = None) -> View:
        """Once a mesh of so many has made some steps."""

        def found() -> View | None:
            view = self.view()
            ranks = sum(one.rank is not None for one in view.workers) if view else 0
            if view is None or view.phase != "running" or ranks != (workers or self.workers):
                return None
            return view if view.step >= view.generations[-1].from_step + SETTLED else None

        return until(found, f"a mesh of {workers or self.workers} makes steps")

    def struck(self, blow: Callable[[View], frozenset[int]], *, replaced: bool = True) -> Blow:
        """What this blow cost; it tells which processes it was meant for."""
        before = self.settled()
        time.sleep(self.chance.uniform(0.0, 0.4))
        at_s = time.time()
        meant = blow(before)
        others = {one.pid for one in before.workers} - meant
        first = until(lambda: _first_new(self.records(), at_s), "a new step")
        kept = all(look(pid) is not None for pid in others)
        newest = max(one.step for one in self.records() if one.ended_s <= at_s)
        after = {one.step: one for one in self.records() if one.ended_s > at_s}
        again = [one.step_s for step, one in after.items() if step <= newest]
        ready_s = self._ready_s(at_s) if replaced else None
        new_s = first.ended_s - at_s
        return Blow(
            new_s=new_s,
            beyond_s=new_s - first.step_s - sum(again),
            again=len(again),
            again_s=sum(again),
            kept=kept,
            ready_s=ready_s,
        )

    def events(self) -> list[tuple[Event, float]]:
        starts = read_history(self.folder).starts
        return [one for start in starts for one in journal.read(start.lines)]

    def records(self) -> list[StepRecord]:
        """Each step of each mesh once, by its end: several ranks tell of it."""
        found: dict[tuple[int, int], StepRecord] = {}
        for event, _ in self.events():
            if isinstance(event, StepsDone | WorkerParked):
                for one in event.records:
                    found.setdefault((event.generation, one.step), one)
        return sorted(found.values(), key=lambda one: one.ended_s)

    def grown_s(self) -> list[float]:
        """By what the steps lay apart at each mesh that grew, less the step itself."""
        view = self.view()
        assert view is not None
        grown = [life.from_step for life in view.generations[1:] if life.died_at_s is None]
        ends = {one.step: one for one in self.records()}
        pairs = [(ends[step], ends[step + 1]) for step in grown if {step, step + 1} <= ends.keys()]
        return [after.ended_s - before.ended_s - after.step_s for before, after in pairs]

    def newest_form_s(self) -> float:
        """The moment at which the newest mesh was asked for."""
        view = self.view()
        assert view is not None
        return view.generations[-1].started_s

    def step_s(self, from_step: int = 0, before_s: float = math.inf) -> float:
        """The median of the steps from this one on that ended before that moment."""
        records = [one for one in self.records() if one.step >= from_step]
        return _median([one.step_s for one in records if one.ended_s < before_s])

    def parts(self) -> str:
        """Where the time of the recoveries goes, in words; medians."""
        view = self.view()
        lives = view.generations if view else ()
        found = [life.recovery_parts for life in lives if life.recovery_parts]
        names = ("detect", "decide", "form", "restore", "first_step", "retrain")
        told = (f"{name} {_median([getattr(one, name) for one in found]):.3f}" for name in names)
        return ", ".join(told)

    def _ready_s(self, at_s: float) -> float:
        def ready() -> float | None:
            came = (when_s for event, when_s in self.events() if isinstance(event, WorkerReady))
            return next((when_s - at_s for when_s in came if when_s > at_s), None)

        return until(ready, "a replacement")


@contextmanager
def struck_run(cluster: LocalCluster, workers: int, *settings: str) -> Iterator[StruckRun]:
    """A run of examples/tiny.toml of so many workers, without spares; stopped afterwards."""
    tiny, data = ROOT / "examples" / "tiny.toml", ROOT / "runs" / "data" / "python-stdlib-128"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        wanted = [f"checkpoint.dir={folder}", f"data.dir={data}", f"train.steps={STEPS}"]
        wanted += ["elastic.spares=0", "elastic.max_failures=1000", "checkpoint.every=1000"]
        wanted += [f"elastic.max_workers={workers}", *settings]
        options = [word for text in wanted for word in ("--set", text)]
        command = [sys.executable, "-m", "remesh.cli", "run", str(tiny), *options]
        with (Path(place) / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--address", cluster.address],
                env={**os.environ, **cluster.environment()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield StruckRun(folder, workers)
        except SystemExit:
            print((Path(place) / "log").read_text()[-2000:])
            raise
        finally:
            for _ in range(2):  # at once
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            process.wait()


def a_rank(number: signal.Signals, chance: random.Random) -> Callable[[View], frozenset[int]]:
    """A signal to one of the members."""

    def blow(view: View) -> frozenset[int]:
        victim = chance.choice([one.pid for one in view.workers if one.rank is not None])
        os.kill(victim, number)
        return frozenset({victim})

    return blow


def a_node(cluster: LocalCluster) -> Callable[[View], frozenset[int]]:
    """All processes of the newest node, Ray's own too."""

    def blow(_: View) -> frozenset[int]:
        victims = session_members({cluster.sessions[-1]})
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return frozenset(victims)

    return blow


def until(found: Callable[[], T | None], what: str) -> T:
    deadline_s = time.monotonic() + LIMIT_S
    while not (one := found()):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"in vain, for {LIMIT_S:.0f} s: {what}")
        time.sleep(LOOK_S)
    return one


def _first_new(records: Sequence[StepRecord], at_s: float) -> StepRecord | None:
    newest = max((one.step for one in records if one.ended_s <= at_s), default=0)
    new = [one for one in records if one.ended_s > at_s and one.step > newest]
    return min(new, key=lambda one: one.ended_s, default=None)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
