"""How long a worker takes to be there: one that replaces a dead one, and the first ones of a run.

A run of four workers on a local cluster of one node, without spares. Its ranks are killed one after
the other; counted are the seconds from the signal until the journal has the WorkerReady of the
replacement. Other runs on the same cluster show how long a start takes to the end of step 1, from
the command, and from the first event of the journal, when the controller is there: the cluster is
up, and nothing is warm. The peer of the first is what a process costs that is started by itself, as
where none can be kept warm; that of the others is what the project promises. How long two local
nodes take that nothing runs on is compared with a Ray that starts all of its parts.

    .venv/bin/python benchmarks/starts.py [--quick]
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring.rows import Row, cost, report

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words.events import Event, StepsDone, WorkerReady

ROOT = Path(__file__).parents[1]
WORKERS = 4
PROMISED_S = {2: 2.0, 4: 2.5}  # by number of workers, to the end of step 1
LIMIT_S = 120.0
STEPS = 10_000  # more than it comes to


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 deaths and 1 start")
    quick = parser.parse_args().quick
    deaths, starts = (3, 1) if quick else (10, 5)
    up_s = [(nodes_up_s(whole=False), nodes_up_s(whole=True)) for _ in range(starts)]
    cluster = LocalCluster.start(nodes=1, workers_per_node=WORKERS)
    try:
        taken_s = {n: [started(cluster, n) for _ in range(starts)] for n in PROMISED_S}
        replaced_s = replaced(cluster, deaths)
    finally:
        cluster.close()
    report("starts", [*rows(replaced_s, taken_s), nodes_row(up_s)])


def rows(replaced_s: list[float], started_s: dict[int, list[tuple[float, float]]]) -> Iterator[Row]:
    replacement = statistics.median(replaced_s)
    alone = statistics.median(alone_s() for _ in range(3))
    yield cost("a death to its replacement ready", "promise", (replacement, 0.5), "s")
    yield cost("a death to its replacement ready", "a process by itself", (replacement, alone), "s")
    for workers, taken_s in started_s.items():
        command, begun = map(statistics.median, zip(*taken_s, strict=True))
        after = f"to the end of step 1, {workers} workers"
        yield cost(f"the controller's begin {after}", "promise", (begun, PROMISED_S[workers]), "s")
        yield cost(f"the command {after}", "promise", (command, PROMISED_S[workers]), "s")


def nodes_row(up_s: list[tuple[float, float]]) -> Row:
    own, whole = map(statistics.median, zip(*up_s, strict=True))
    return cost("two local nodes up", "Ray with all of its parts", (own, whole), "s")


def nodes_up_s(*, whole: bool) -> float:
    """Seconds until two local nodes are there."""
    began_s = time.monotonic()
    cluster = LocalCluster.start(nodes=2, workers_per_node=2, job_server=whole)
    took_s = time.monotonic() - began_s
    cluster.close()
    return took_s


def started(cluster: LocalCluster, workers: int) -> tuple[float, float]:
    """Seconds to the end of a run's first step: from its command, and from its first event."""
    asked_s = time.time()
    with running(cluster, f"elastic.max_workers={workers}") as folder:
        until(lambda: any(isinstance(event, StepsDone) for event, _ in events(folder)))
        told = events(folder)
    ended_s = next(e.records[0].ended_s for e, _ in told if isinstance(e, StepsDone))
    return ended_s - asked_s, ended_s - told[0][1]


def replaced(cluster: LocalCluster, deaths: int) -> list[float]:
    """Seconds from each death until another worker is ready."""
    found = []
    with running(cluster) as folder:
        for number in range(deaths):
            until(lambda: len(ready(folder)) == WORKERS + number and trains(folder))  # noqa: B023
            at_s = time.time()
            os.kill(ready(folder)[-1][0].pid, signal.SIGKILL)
            until(lambda: len(ready(folder)) > WORKERS + number)  # noqa: B023
            found.append(ready(folder)[-1][1] - at_s)
    return found


def ready(folder: Path) -> list[tuple[WorkerReady, float]]:
    return [(event, at_s) for event, at_s in events(folder) if isinstance(event, WorkerReady)]


def trains(folder: Path) -> bool:
    """Whether a step has ended since the newest worker was ready."""
    told = [type(event) for event, _ in events(folder)]
    return StepsDone in told[len(told) - 1 - told[::-1].index(WorkerReady) :]


def events(folder: Path) -> list[tuple[Event, float]]:
    return [one for start in read_history(folder).starts for one in journal.read(start.lines)]


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit("nothing comes any more")
        time.sleep(0.02)


@contextmanager
def running(cluster: LocalCluster, *settings: str) -> Iterator[Path]:
    """The folder of a run, which is stopped afterwards."""
    tiny, data = ROOT / "examples" / "tiny.toml", ROOT / "runs" / "data" / "python-stdlib-128"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        wanted = [f"checkpoint.dir={folder}", f"data.dir={data}", f"train.steps={STEPS}"]
        wanted += ["elastic.spares=0", "elastic.max_failures=1000", *settings]
        options = [word for text in wanted for word in ("--set", text)]
        command = [sys.executable, "-m", "remesh.cli", "run", str(tiny), *options]
        process = subprocess.Popen(
            [*command, "--address", cluster.address],
            env={**os.environ, **cluster.environment()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield folder
        finally:
            for _ in range(2):  # at once
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            process.wait()


def alone_s() -> float:
    """What starting Python, and importing what a rank needs, takes."""
    start_s = time.monotonic()
    what = "import remesh.actors.worker.rank_process"
    subprocess.run([sys.executable, "-c", what], check=True)
    return time.monotonic() - start_s


if __name__ == "__main__":
    main()
