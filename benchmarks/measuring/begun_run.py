"""A run of examples/tiny.toml from its command to the end of step 1, looked at from outside."""

import compileall
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.processes import processes
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words.events import (
    Event,
    RunStarted,
    StepsDone,
    WorkerReady,
    WorkerRestored,
)

ROOT = Path(__file__).parents[2]
DATA = ROOT / "runs" / "data" / "python-stdlib-128"
STEPS = 10_000  # more than it comes to
LIMIT_S = 120.0
LOOK_S = 0.02

Told = Sequence[tuple[Event, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds from the command to each of these, and what all processes took by the last one.

    `nodes` is when Ray's nodes were up, None where they were before.
    """

    nodes: float | None
    controller: float
    ready: float
    restored: float
    step: float
    processor_s: float


def as_installed() -> None:
    """Compiles what is measured, as pip does: Python may have been told to write nothing down."""
    for room in ("actors", "api", "data", "orchestrator", "parallel"):
        compileall.compile_dir(ROOT / room, quiet=1)


@contextmanager
def begun(workers: int, cluster: LocalCluster | None, *settings: str) -> Iterator[Path]:
    """The folder of a run with so many workers: on this cluster, or on a node of its own."""
    with tempfile.TemporaryDirectory() as place, commanded(Path(place), workers, cluster, settings):
        yield Path(place) / "run"


def started(workers: int, cluster: LocalCluster | None) -> Start:
    asked_s = time.time()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        with commanded(Path(place), workers, cluster, ()) as process:
            until(lambda: any(isinstance(event, StepsDone) for event, _ in events(folder)))
            told, sessions = events(folder), set(sessions_of(process.pid, cluster))
            nodes_s = None if cluster else nodes_up_s(process.pid)
            took_s = sum(processor_s(one.pid) for one in processes() if one.session in sessions)
    ended_s = next(e.records[0].ended_s for e, _ in told if isinstance(e, StepsDone))
    return Start(
        nodes=nodes_s and nodes_s - asked_s,
        controller=told_s(told, RunStarted) - asked_s,
        ready=told_s(told, WorkerReady) - asked_s,
        restored=told_s(told, WorkerRestored) - asked_s,
        step=ended_s - asked_s,
        processor_s=took_s,
    )


def told_s(told: Told, kind: type[Event]) -> float:
    """When the last one of a kind was told."""
    return max(at_s for event, at_s in told if isinstance(event, kind))


def events(folder: Path) -> Told:
    return [one for start in read_history(folder).starts for one in journal.read(start.lines)]


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit("nothing comes any more")
        time.sleep(LOOK_S)


@contextmanager
def commanded(
    place: Path, workers: int, cluster: LocalCluster | None, settings: Sequence[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """The command of such a run, which is stopped afterwards."""
    wanted = [f"checkpoint.dir={place / 'run'}", f"data.dir={DATA}", f"train.steps={STEPS}"]
    wanted += [f"elastic.max_workers={workers}", *settings]
    where = ["--address", cluster.address] if cluster else ["--nodes", "1"]
    where += [] if cluster else ["--workers-per-node", str(workers)]
    options = [word for text in wanted for word in ("--set", text)]
    job = str(ROOT / "examples" / "tiny.toml")
    process = subprocess.Popen(
        [sys.executable, "-m", "remesh.cli", "run", job, *options, *where],
        env={**os.environ, **(cluster.environment() if cluster else {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for _ in range(2):  # at once
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        process.wait()


def sessions_of(command: int, cluster: LocalCluster | None) -> Iterator[int]:
    """Of the command, and of the nodes that it has started."""
    yield command
    if cluster:
        yield from cluster.sessions
        return
    supervisor = supervisor_of(command)
    yield supervisor
    yield from (one.session for one in processes() if one.parent == supervisor)


def supervisor_of(command: int) -> int:
    return next(one.pid for one in processes() if one.parent == command)


def nodes_up_s(command: int) -> float:
    """When the last raylet of the nodes that a command has started began to listen."""
    words = Path(f"/proc/{supervisor_of(command)}/cmdline").read_text().split("\0")
    sockets = Path(next(word for word in reversed(words) if word)).glob("n*/*/sockets/raylet")
    return max(path.lstat().st_mtime for path in sockets)


def processor_s(pid: int) -> float:
    """What a process and those of its children that have ended took of processors."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks: int = os.sysconf("SC_CLK_TCK")
    return sum(map(int, fields[11:15])) / ticks
