"""How long a run takes to be at work, from its command, and a worker that replaces a dead one.

Runs of examples/tiny.toml on a local node of their own, with two and with four workers, each from
the command to the end of step 1: in turns with torchrun, which starts as many ranks of a loop that
is written by hand with DDP (a model of the same sizes), and, where a Python is named that has it,
with Ray Train. Of these starts the part after Ray's node is up is compared with what the project
promises, and where the time goes is printed: when each part was done, and what all processes took
of the processors by then. Likewise a command on a cluster that runs already.

Then ranks of a run without spares are killed one after the other; counted are the seconds from the
signal until the journal has the WorkerReady of the replacement, beside what a process costs that is
started by itself. Two local nodes that nothing runs on are compared with a Ray that starts all of
its parts.

    python3.11 -m venv peers
    peers/bin/pip install -c constraints.txt torch 'ray[train]'
    .venv/bin/python benchmarks/starts.py [--quick] [--peers peers/bin]
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from measuring.begun_run import DATA, Start, as_installed, begun, events, started, until
from measuring.rows import Row, cost, report

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.cli.data_commands import ensure_dataset
from remesh.orchestrator.control.words.events import StepsDone, WorkerReady
from remesh.orchestrator.job.job import load_job

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers" / "start_peers.py"
WORKERS = 4
PROMISED_S = {2: 2.0, 4: 2.5}  # by number of workers, from Ray's node to the end of step 1
REPLACED_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often each is measured."""

    starts: int = 5
    slow: int = 3  # what takes a peer long, or is the same as before
    deaths: int = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 start of each, 3 deaths")
    parser.add_argument("--peers", type=Path, help="the bin of an environment with ray[train]")
    asked = parser.parse_args()
    as_installed()
    times = Times(starts=1, slow=1, deaths=3) if asked.quick else Times()
    ensure_dataset(load_job(ROOT / "examples" / "tiny.toml", [f"data.dir={DATA}"]), print)
    rows = [row for workers in PROMISED_S for row in whole_starts(workers, times, asked.peers)]
    rows.append(nodes_row(times.slow))
    cluster = LocalCluster.start(nodes=1, workers_per_node=WORKERS)
    try:
        rows += [on_a_cluster(cluster, workers, times.slow) for workers in PROMISED_S]
        rows += replacement_rows(replaced(cluster, times.deaths))
    finally:
        cluster.close()
    report("starts", rows)


def whole_starts(workers: int, times: Times, bin_folder: Path | None) -> Iterator[Row]:
    ours: list[Start] = []
    by_hand: list[float] = []
    for _ in range(times.starts):
        ours.append(started(workers, None))
        by_hand.append(ended_s(torchrun(workers), workers))
    found = tell(f"{workers} workers, on a node of their own", ours)
    assert found.nodes is not None
    promised, whole = PROMISED_S[workers], f"the command to the end of step 1, {workers} workers"
    case = f"Ray's node to the end of step 1, {workers} workers"
    yield cost(case, "promise", (found.step - found.nodes, promised), "s")
    yield cost(whole, "torchrun", (found.step, statistics.median(by_hand)), "s")
    if bin_folder is not None:
        theirs = [
            ended_s([str(bin_folder / "python")], workers, "ray-train") for _ in range(times.slow)
        ]
        yield cost(whole, "Ray Train", (found.step, statistics.median(theirs)), "s")


def on_a_cluster(cluster: LocalCluster, workers: int, times: int) -> Row:
    found = tell(
        f"{workers} workers, on a node that is up",
        [started(workers, cluster) for _ in range(times)],
    )
    case = f"a command on a node that is up, {workers} workers"
    return cost(case, "promise", (found.step, PROMISED_S[workers]), "s")


def tell(case: str, starts: Sequence[Start]) -> Start:
    """The median of each part, printed."""
    parts = [field.name for field in fields(Start)]
    by_part = {part: [getattr(start, part) for start in starts] for part in parts}
    middle = {
        part: None if None in found else statistics.median(found) for part, found in by_part.items()
    }
    words = [f"{part} {seconds:.2f}" for part, seconds in middle.items() if seconds is not None]
    print(f"{case}: seconds to {', '.join(words)}")
    return Start(**middle)


def torchrun(ranks: int) -> list[str]:
    how = ["--standalone", "--nnodes=1", f"--nproc-per-node={ranks}"]
    return [sys.executable, "-m", "torch.distributed.run", *how]


def ended_s(command: Sequence[str], ranks: int, peer: str = "torchrun") -> float:
    """Seconds from the command until the last rank of a peer has ended its step 1."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        asked_s = time.time()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, str(PEERS), peer, str(folder), str(ranks)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_memory_monitor_refresh_ms": "0"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if process.wait() != 0:
            raise SystemExit(f"{peer} has failed:\n{(folder / 'log').read_text()[-2000:]}")
        return max(float(path.read_text()) for path in folder.glob("ended-*")) - asked_s


def nodes_row(times: int) -> Row:
    up_s = [(nodes_up_s(whole=False), nodes_up_s(whole=True)) for _ in range(times)]
    own, whole = map(statistics.median, zip(*up_s, strict=True))
    return cost("two local nodes up", "Ray with all of its parts", (own, whole), "s")


def nodes_up_s(*, whole: bool) -> float:
    """Seconds until two local nodes are there."""
    began_s = time.monotonic()
    cluster = LocalCluster.start(nodes=2, workers_per_node=2, job_server=whole)
    took_s = time.monotonic() - began_s
    cluster.close()
    return took_s


def replacement_rows(found: Sequence[float]) -> Iterator[Row]:
    replacement, alone = statistics.median(found), statistics.median(alone_s() for _ in range(3))
    case = "a death to its replacement ready"
    yield cost(case, "promise", (replacement, REPLACED_S), "s")
    yield cost(case, "a process by itself", (replacement, alone), "s")


def replaced(cluster: LocalCluster, deaths: int) -> list[float]:
    """Seconds from each death until another worker is ready."""
    found = []
    with begun(WORKERS, cluster, "elastic.spares=0", "elastic.max_failures=1000") as folder:
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


def alone_s() -> float:
    """What starting Python, and importing what a rank needs, takes."""
    start_s = time.monotonic()
    what = "import remesh.actors.worker.rank_process"
    subprocess.run([sys.executable, "-c", what], check=True)
    return time.monotonic() - start_s


if __name__ == "__main__":
    main()
