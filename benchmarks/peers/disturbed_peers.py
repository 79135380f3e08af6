"""Peers of a recovery: torchrun, Ray Train and torchft train the same small model, disturbed.

Four ranks, of which an injector outside of all of them kills or stops one. Counted are the seconds
to the end of a step that nobody had done before, and the steps that were done twice. One who has
not gone on when its time is up is given up.
"""

import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PEERS = Path(__file__).with_name("recovery_peers.py")
RANKS = 4
FAULT_STEP = 25  # in the middle between two checkpoints
LIMIT_S = 120.0  # to begin with
FAULTS = {"killed rank": signal.SIGKILL, "frozen rank": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a folder tells of a run: the ranks' processes, and who ended which step when."""

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
    """Seconds from the fault to the end of a step never done before, and the steps done again.

    For one that was given up `seconds` are those that it was given, and nobody knows the steps.
    """

    seconds: float
    again: int | None


def disturbed(contestant: Contestant, fault: str, chance: random.Random, within_s: float) -> Trial:
    with tempfile.TemporaryDirectory() as place, running(contestant, Path(place)) as ended:
        folder = Path(place)
        log = folder / "log"
        until(lambda: ended() or contestant.look(folder).step >= FAULT_STEP, log)
        time.sleep(chance.uniform(0, 0.3))
        victim = chance.choice(sorted(filter(alive, contestant.look(folder).pids)))
        at_s = time.time()
        os.kill(victim, FAULTS[fault])
        while not (trial := told(contestant.look(folder), at_s)):
            if time.time() - at_s > within_s or ended():
                trial = Trial(seconds=within_s, again=None)
                break
            time.sleep(0.02)
        if alive(victim):
            os.kill(victim, signal.SIGKILL)
        return trial


def told(seen: Seen, at_s: float) -> Trial | None:
    """None until there is a new step."""
    before = {(who, step) for who, step, end_s in seen.ends if end_s <= at_s}
    after = [end for end in seen.ends if end[2] > at_s]
    tellers, newest = {who for who, _ in before}, max(step for _, step in before)
    # One who was there before and had not ended the step yet does it for the first time.
    again = {
        step
        for who, step, _ in after
        if step <= newest and ((who, step) in before or who not in tellers)
    }
    new = [end_s - at_s for _, step, end_s in after if step > newest]
    return Trial(seconds=round(min(new), 3), again=len(again)) if new else None


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


def peers(bin_folder: Path) -> list[Contestant]:
    """Those of them that are installed there."""
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
    found = {
        "torchrun": Contestant(
            name="torchrun", commands=torchrun, look=diaries, environment=restarts
        ),
        "ray": Contestant(name="Ray Train", commands=ray_train, look=diaries),
        "torchft_lighthouse": Contestant(
            name="torchft", commands=torchft, look=diaries, servers=lighthouse
        ),
    }
    return [one for tool, one in found.items() if (bin_folder / tool).exists()]


def diaries(folder: Path) -> Seen:
    lines = [line for path in folder.glob("steps-*.jsonl") for line in whole_lines(path)]
    return Seen(
        pids=frozenset(pid for pid, _, _ in lines),
        ends=tuple(lines),
    )


def whole_lines(path: Path) -> list[tuple[int, int, float]]:
    *lines, _ = path.read_text().split("\n")
    return [tuple(json.loads(line)) for line in lines]
