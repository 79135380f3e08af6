"""Milliseconds a step of whole runs: `remesh run` against torchrun with a DDP loop by hand.

Both train the same model on the same dataset with the same global batch, cut into the same
microbatches, on one node, and write a record of each step; each run is a command of its own, one
after the other in turns. Of each run its middle is looked at: the times from the end of a step to
the end of the next, of which all runs' median is shown, and what the processors spend meanwhile on
all processes of the run, a step; printed beside it is how much of that each kind of them takes. A
model of one layer computes next to nothing: what is left is what each of them does anyway. `start`
is the time from the command to the end of the first step, `end` that from the end of the last one
until the command has ended, its state saved.

    .venv/bin/python benchmarks/whole_run.py [--quick] [--rounds N] [--size NAME] [--workers N]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from measuring.rows import Row, cost, report
from measuring.watch import MARK, Watch

from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words.events import StepsDone
from remesh.orchestrator.job.job import Job, load_job

ROOT = Path(__file__).parents[1]
TINY = ROOT / "examples" / "tiny.toml"
LOOP = Path(__file__).parent / "peers" / "ddp_loop.py"
DATA = ROOT / "runs" / "data" / "python-stdlib-128"
PEER = "torchrun with a DDP loop"
LIMIT_S = 300.0
SKIPPED = 0.25  # of a run's steps, before its middle
ALONE = ("--nodes", "1")
NEVER = "1000000"
ONE_LAYER = "one layer"
RUNS = {  # what is asked for of a run
    "same bits": (),
    "any bits": ("elastic.same_bits=false",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSize:
    """Settings of the example, how many steps are looked at, and how large DDP's buckets are."""

    name: str
    steps: int
    settings: tuple[str, ...] = ()
    runs: tuple[str, ...] = tuple(RUNS)
    bucket_mb: int = 25

    def job(self, workers: int) -> tuple[str, ...]:
        """All settings of a run with so many workers."""
        batch = (f"train.global_batch={workers}",) if self.name == ONE_LAYER else ()
        wanted = (f"train.steps={self.steps}", f"elastic.max_workers={workers}")
        return (*self.settings, *batch, *wanted, f"checkpoint.every={NEVER}", f"data.dir={DATA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of steps in the middle of a run, all processors' too; before the first, after the last."""

    steps_ms: tuple[float, ...]
    spent_ms: dict[str, float]
    start_s: float
    end_s: float

    @property
    def cpu_ms(self) -> float:
        return sum(self.spent_ms.values())

    @property
    def shown(self) -> str:
        step_ms = statistics.median(self.steps_ms)
        most = sorted(self.spent_ms.items(), key=lambda spent: -spent[1])
        parts = ", ".join(f"{kind} {ms:.1f}" for kind, ms in most)
        steps = f"{step_ms:.1f} ms a step, processors {self.cpu_ms:.1f} ({parts})"
        return f"{steps}, start {self.start_s:.1f} s, end {self.end_s:.1f}"


WIDE = ("model.width=256", "model.ffn_width=704")
NARROW = ("model.num_layers=1", "model.width=32", "model.num_heads=2", "model.ffn_width=96")
SIZES = (
    RunSize(name="tiny", steps=40),
    RunSize(name="width 256", steps=16, settings=WIDE),
    RunSize(
        name=ONE_LAYER,
        steps=400,
        settings=(*NARROW, "train.microbatch=1"),
        runs=("same bits",),
    ),
)
Contestant = Callable[[Path], list[float]]  # the moments at which its steps ended, in a folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny with 2 workers, one round")
    parser.add_argument("--rounds", type=int, help="turns of each contestant [default: 2]")
    parser.add_argument("--size", choices=[size.name for size in SIZES], action="append")
    parser.add_argument("--workers", type=int, action="append", help="[default: 2 and 4]")
    asked = parser.parse_args()
    sizes = [size for size in SIZES if size.name in (asked.size or [one.name for one in SIZES])]
    workers, rounds = asked.workers or [2, 4], asked.rounds or 2
    if asked.quick:
        sizes, workers, rounds = [SIZES[0]], [2], 1
    if not DATA.exists():
        build = ["data", "build", "python-stdlib", "--out", str(DATA), "--seq-len", "128"]
        subprocess.run([sys.executable, "-m", "remesh.cli", *build], check=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        tokens = Path(place) / "rows.npy"
        np.save(tokens, dataset(DATA))
        for size in sizes:
            for number in workers:
                rows += compared(size, number, in_turns(size, number, rounds, tokens))
    report("whole_run", rows)


def in_turns(size: RunSize, workers: int, rounds: int, tokens: Path) -> dict[str, list[Times]]:
    contestants: dict[str, Contestant] = {
        name: remesh(size, workers, RUNS[name]) for name in size.runs
    }
    contestants[PEER] = torchrun(size, workers, tokens)
    found: dict[str, list[Times]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times = timed(contestant)
            print(f"{size.name}, {workers} workers, {name}: {times.shown}", flush=True)
            found[name].append(times)
    return found


def compared(size: RunSize, workers: int, found: dict[str, list[Times]]) -> Iterator[Row]:
    def median(name: str, what: str) -> float:
        return statistics.median(getattr(times, what) for times in found[name])

    def step_ms(name: str) -> float:
        return statistics.median(ms for times in found[name] for ms in times.steps_ms)

    case = f"{size.name}, {workers} workers"
    for name in size.runs:
        yield cost(f"{case}, {name}, a step", PEER, (step_ms(name), step_ms(PEER)), "ms")
        spent = median(name, "cpu_ms"), median(PEER, "cpu_ms")
        yield cost(f"{case}, {name}, processors' time", PEER, spent, "ms")
    for what in ("start", "end"):
        taken_s = (median(size.runs[0], f"{what}_s"), median(PEER, f"{what}_s"))
        yield cost(f"{case}, {what}", PEER, taken_s, "s")


def timed(contestant: Contestant) -> Times:
    with tempfile.TemporaryDirectory() as place:
        began_s = time.time()
        with Watch.over(place) as watch:
            ends_s = contestant(Path(place))
        ended_s = time.time()
    middle = ends_s[int(SKIPPED * len(ends_s)) :]
    spent_s = watch.spent_s(middle[0], middle[-1])
    return Times(
        steps_ms=tuple(1e3 * (end - start) for start, end in pairwise(middle)),
        spent_ms={kind: 1e3 * s / (len(middle) - 1) for kind, s in spent_s.items()},
        start_s=round(ends_s[0] - began_s, 3),
        end_s=round(ended_s - ends_s[-1], 3),
    )


def remesh(size: RunSize, workers: int, settings: Sequence[str]) -> Contestant:
    def run(folder: Path) -> list[float]:
        place = f"checkpoint.dir={folder / 'run'}"
        options = [
            word for text in (*size.job(workers), *settings, place) for word in ("--set", text)
        ]
        on = (*ALONE, "--workers-per-node", str(workers))
        ended([sys.executable, "-m", "remesh.cli", "run", str(TINY), *on, *options], folder)
        starts = read_history(folder / "run").starts
        events = [event for start in starts for event, _ in journal.read(start.lines)]
        done = [event.records for event in events if isinstance(event, StepsDone)]
        return [record.ended_s for records in done for record in records]

    return run


def torchrun(size: RunSize, workers: int, tokens: Path) -> Contestant:
    def run(folder: Path) -> list[float]:
        recipe = folder / "recipe.json"
        recipe.write_text(json.dumps(recipe_of(job_of(size, workers), size.bucket_mb, tokens)))
        how = ["--standalone", f"--nproc-per-node={workers}"]
        module = [sys.executable, "-m", "torch.distributed.run"]
        ended([*module, *how, str(LOOP), str(recipe)], folder)
        lines = (folder / "log.jsonl").read_text().splitlines()
        return [json.loads(line)["ended_s"] for line in lines]

    return run


def job_of(size: RunSize, workers: int) -> Job:
    return load_job(TINY, size.job(workers))


def recipe_of(job: Job, bucket_mb: int, tokens: Path) -> dict[str, object]:
    """What the loop by hand needs to know."""
    train = job.train
    return {
        "model": {"seq_len": train.seq_len, **job.model.model_dump()},
        "rows": str(tokens),
        "bucket_mb": bucket_mb,
        **{
            name: getattr(train, name)
            for name in ("global_batch", "microbatch", "steps", "lr", "warmup_steps", "clip")
        },
    }


def ended(command: Sequence[str], folder: Path) -> None:
    """Raises: SystemExit with what it has written if it fails."""
    log = folder / "output"
    with log.open("wb") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: str(folder)}
        code = subprocess.run(
            command,
            stdout=file,
            stderr=file,
            env=environment,
            cwd=ROOT,
            timeout=LIMIT_S,
            check=False,
        ).returncode
    if code:
        raise SystemExit(f"{command[3]} ended with {code}:\n{log.read_text()[-2000:]}")


def dataset(folder: Path) -> np.ndarray:
    """All rows of a dataset, of one more token than the model sees."""
    shards = [pa.ipc.open_file(str(path)).read_all() for path in sorted(folder.glob("*.arrow"))]
    column = pa.chunked_array([chunk for shard in shards for chunk in shard["tokens"].chunks])
    flat = np.concatenate([chunk.values.to_numpy() for chunk in column.chunks])
    return flat.reshape(len(column), -1)


if __name__ == "__main__":
    main()
