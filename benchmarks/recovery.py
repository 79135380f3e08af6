"""How long a run stands still when a rank dies or freezes, beside torchrun, Ray Train and torchft.

Four ranks of the same small model on this machine. An injector outside of all of them waits for a
step, then a random moment more, and sends SIGKILL or SIGSTOP to one rank. Counted are the seconds
to the end of a step that nobody had done before, and the steps that were done twice. The peers run
under a Python of their own:

    python3.11 -m venv peers
    peers/bin/pip install -c constraints.txt torch 'ray[train]' torchft==0.2.0
    .venv/bin/python benchmarks/recovery.py --peers peers/bin
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from measuring.rows import Row, cost, report

from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words.events import StepsDone, WorkerReady

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers" / "recovery_peers.py"
RANKS = 4
STEPS = 60
FAULT_STEP = 25  # in the middle between two checkpoints
LIMIT_S = 300.0
FAULTS = {"killed rank": signal.SIGKILL, "frozen rank": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a folder tells of a run: the ranks' processes, and who ended which step at what moment.

    Remesh tells of a step once and not for each process: its teller is 0.
    """

    pids: frozenset[int]
    ends: tuple[tuple[int, int, float], ...]

    @property
    def step(self) -> int:
        return max((step for _, step, _ in self.ends), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """`commands(folder, port)` train together until the last of them ends."""

    name: str
    commands: Callable[[Path, int], Sequence[Sequence[str]]]
    look: Callable[[Path], Seen]
    environment: dict[str, str] = field(default_factory=dict)
    servers: Callable[[int], Sequence[Sequence[str]]] = lambda _: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Seconds from the fault to the end of a step never done before, and the steps done again."""

    seconds: float
    again: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, help="the bin folder where the peers are installed")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--frozen", type=int, default=1, help="trials with a frozen rank")
    asked = parser.parse_args()
    contestants = [remesh(), *(peers(asked.peers.absolute()) if asked.peers else ())]
    rows: list[Row] = []
    for fault, trials in (("killed rank", asked.trials), ("frozen rank", asked.frozen)):
        if trials:
            found = in_turns(contestants, fault, trials)
            rows += compared(fault, found)
    report("recovery", rows)


def in_turns(contestants: Sequence[Contestant], fault: str, trials: int) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {contestant.name: [] for contestant in contestants}
    for number in range(trials):
        for contestant in contestants:
            trial = disturbed(contestant, fault, random.Random(number))
            print(f"{fault}, {contestant.name}: {trial}", flush=True)
            found[contestant.name].append(trial)
    return found


def compared(fault: str, found: dict[str, list[Trial]]) -> Iterator[Row]:
    ours, *others = found
    for what, unit, of in (
        ("to a new step", "s", lambda trial: trial.seconds),
        ("done again", "steps", lambda trial: trial.again),
    ):
        medians = {name: statistics.median(map(of, trials)) for name, trials in found.items()}
        for other in others:
            yield cost(f"{fault}, {what}", other, (medians[ours], medians[other]), unit)


def disturbed(contestant: Contestant, fault: str, chance: random.Random) -> Trial:
    with tempfile.TemporaryDirectory() as place, running(contestant, Path(place)) as ended:
        folder = Path(place)
        log = folder / "log"
        until(lambda: ended() or contestant.look(folder).step >= FAULT_STEP, log)
        time.sleep(chance.uniform(0, 0.3))
        victim = chance.choice(sorted(filter(alive, contestant.look(folder).pids)))
        at_s = time.time()
        os.kill(victim, FAULTS[fault])
        until(ended, log)
        if alive(victim):
            os.kill(victim, signal.SIGKILL)
        return told(contestant.look(folder), at_s)


def told(seen: Seen, at_s: float) -> Trial:
    before = {(who, step) for who, step, end_s in seen.ends if end_s <= at_s}
    after = [end for end in seen.ends if end[2] > at_s]
    tellers, newest = {who for who, _ in before}, max(step for _, step in before)
    # One who was there before and had not ended the step yet does it for the first time.
    again = {
        step
        for who, step, _ in after
        if step <= newest and ((who, step) in before or who not in tellers)
    }
    new_s = min(end_s for _, step, end_s in after if step > newest) - at_s
    return Trial(seconds=round(new_s, 3), again=len(again))


def until(true: Callable[[], bool], log: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"nothing comes any more:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)


@contextmanager
def running(contestant: Contestant, folder: Path) -> Iterator[Callable[[], bool]]:
    """What tells whether it has ended. Nothing of it is left behind."""
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **contestant.environment}
    environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))

        def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=folder
            )
            stack.callback(end, process)
            return process

        for command in contestant.servers(port):
            start(command)
        processes = [start(command) for command in contestant.commands(folder, port)]
        yield lambda: all(process.poll() is not None for process in processes)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def remesh() -> Contestant:
    tiny = str(ROOT / "examples" / "tiny.toml")
    data = ROOT / "runs" / "data" / "python-stdlib-128"

    def commands(folder: Path, _: int) -> Sequence[Sequence[str]]:
        sets = [f"checkpoint.dir={folder / 'run'}", f"data.dir={data}", f"train.steps={STEPS}"]
        options = [word for text in [*sets, "checkpoint.every=10"] for word in ("--set", text)]
        return [[sys.executable, "-m", "remesh.cli", "run", tiny, *options]]

    def look(folder: Path) -> Seen:
        starts = read_history(folder / "run").starts
        events = [event for start in starts for event, _ in journal.read(start.lines)]
        done = [event.records for event in events if isinstance(event, StepsDone)]
        return Seen(
            pids=frozenset(event.pid for event in events if isinstance(event, WorkerReady)),
            ends=tuple((0, record.step, record.ended_s) for records in done for record in records),
        )

    return Contestant(name="remesh", commands=commands, look=look)


def peers(bin_folder: Path) -> list[Contestant]:
    python = str(bin_folder / "python")

    def torchrun(folder: Path, port: int) -> Sequence[Sequence[str]]:
        how = ["--nnodes=1", f"--nproc-per-node={RANKS}", "--max-restarts=3"]
        where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        return [[str(bin_folder / "torchrun"), *how, *where, str(PEERS), "torchrun", str(folder)]]

    def ray_train(folder: Path, _: int) -> Sequence[Sequence[str]]:
        return [[python, str(PEERS), "ray-train", str(folder)]]

    def torchft(folder: Path, _: int) -> Sequence[Sequence[str]]:
        return [[python, str(PEERS), "torchft", str(folder)]] * RANKS

    def lighthouse(port: int) -> Sequence[Sequence[str]]:
        how = ["--min_replicas=1", "--join_timeout_ms=1000", f"--bind=127.0.0.1:{port}"]
        return [[str(bin_folder / "torchft_lighthouse"), *how]]

    # Without it torchrun does not restart here at all.
    restarts = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [
        Contestant(name="torchrun", commands=torchrun, look=diaries, environment=restarts),
        Contestant(name="Ray Train", commands=ray_train, look=diaries),
        Contestant(name="torchft", commands=torchft, look=diaries, servers=lighthouse),
    ]


def diaries(folder: Path) -> Seen:
    lines = [line for path in folder.glob("steps-*.jsonl") for line in whole_lines(path)]
    return Seen(
        pids=frozenset(pid for pid, _, _ in lines),
        ends=tuple(lines),
    )


def whole_lines(path: Path) -> list[tuple[int, int, float]]:
    *lines, _ = path.read_text().split("\n")
    return [tuple(json.loads(line)) for line in lines]


if __name__ == "__main__":
    main()
