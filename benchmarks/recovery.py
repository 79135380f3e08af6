"""What a run loses when a rank dies or freezes, a node dies, or one is added.

Runs of examples/tiny.toml with four workers on this machine, each struck several times by somebody
outside of them who kills (SIGKILL) or stops (SIGSTOP) a rank at a moment that is drawn, kills all
processes of a node, or scales. Counted are the seconds from the blow to the end of a step that
nobody had trained before, less that step itself and those that were trained twice, which are told
apart: how many, and what they took. Compared with what the project promises, and with `--peers`
also with torchrun, Ray Train and torchft (of which those count that are installed there), whose
ranks train the same sizes and are struck alike, less often, and given up where they have not gone
on after a minute:

    python3.11 -m venv peers
    peers/bin/pip install -c constraints.txt torch 'ray[train]' torchft==0.2.0
    .venv/bin/python benchmarks/recovery.py [--quick] [--peers peers/bin]
"""

import argparse
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring.begun_run import as_installed
from measuring.rows import Row, cost, report
from measuring.struck_run import Blow, StruckRun, a_node, a_rank, struck_run
from peers.disturbed_peers import Contestant, Trial, disturbed, peers

from remesh.actors.cluster.local_cluster import LocalCluster

WORKERS = 4
INTERVAL_S = 2.0  # of snapshots, at most
GROW_S, READY_S, TAKEN_IN_S = 0.1, 0.5, 2.0
PROMISE = "promise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Blows of `number` to ranks of a run with these settings, and what is promised of them."""

    name: str
    settings: tuple[str, ...]
    number: signal.Signals
    p50_s: float
    p95_s: float | None = None
    only: str = ""


ZERO3 = ("zero.stage=3", "checkpoint.snapshot_every=auto")
CASES = (
    Case(name="killed rank, dp 4", settings=(), number=signal.SIGKILL, p50_s=0.08, p95_s=0.2),
    Case(name="killed rank, zero 3", settings=ZERO3, number=signal.SIGKILL, p50_s=0.08, p95_s=0.2),
    Case(
        name="killed rank, tp 2 dp 2",
        settings=("parallel.tp=2",),
        number=signal.SIGKILL,
        p50_s=0.1,
    ),
    Case(name="frozen rank, dp 4", settings=(), number=signal.SIGSTOP, p50_s=0.4),
)
NODE_S = 0.4
NODES = 3  # struck, and taken in
TRIALS = {"killed rank": 2, "frozen rank": 1}  # of a peer
GIVEN_S = 60.0  # to a peer, from a fault to its next step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 blows of the first case and a node")
    parser.add_argument("--peers", type=Path, help="the bin folder where the peers are installed")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--blows", type=int, help="a case; 10, or 5 with peers")
    asked = parser.parse_args()
    as_installed()
    blows = 2 if asked.quick else asked.blows or (5 if asked.peers else 10)
    chosen = [one for one in (CASES[:1] if asked.quick else CASES) if asked.only in one.name]
    rows: list[Row] = []
    ours: dict[str, list[Blow]] = {}
    if chosen:
        cluster = LocalCluster.start(nodes=1, workers_per_node=WORKERS)
        try:
            for case in chosen:
                ours[case.name], own = struck_ranks(cluster, case, blows)
                rows += own
        finally:
            cluster.close()
    if asked.only in "killed node":
        rows += struck_nodes(min(blows, NODES))
    if asked.only in "scaled" and not asked.quick:
        rows += scaled(min(blows, NODES))
    if asked.peers:
        rows += beside(asked.peers.absolute(), ours, quick=asked.quick)
    report("recovery" if not (asked.quick or asked.only) else "recovery_quick", rows)


def struck_ranks(cluster: LocalCluster, case: Case, blows: int) -> tuple[list[Blow], list[Row]]:
    with struck_run(cluster, WORKERS, *case.settings) as run:
        blow = a_rank(case.number, run.chance)
        found = [run.struck(blow) for _ in range(blows)]
        run.settled()
        grown_s, step_s, parts = run.grown_s(), run.step_s(), run.parts()
    tell(case.name, found, f"{parts}; a step takes {step_s:.3f}")
    rows = [*beyond(case.name, found, case.p50_s, case.p95_s)]
    rows += again(case.name, found, max(2.0, INTERVAL_S / step_s))
    if case is CASES[0]:
        ready_s = statistics.median(one.ready_s for one in found if one.ready_s is not None)
        rows.append(cost("a death to its replacement ready", PROMISE, (ready_s, READY_S), "s"))
        what = "grow by one rank, beyond the step"
        rows += [cost(what, PROMISE, (_median(grown_s), GROW_S), "s")] if grown_s else []
    return found, rows


def struck_nodes(blows: int) -> Iterator[Row]:
    """Of a head and as many nodes as make up four workers; another one comes for each that died."""
    name = "killed node, dp 4"
    cluster = LocalCluster.start(nodes=WORKERS, workers_per_node=1, warm=True)
    try:
        with struck_run(cluster, WORKERS) as run:
            found, taken_s = [], []
            for _ in range(blows):
                found.append(run.struck(a_node(cluster), replaced=False))
                run.settled(WORKERS - 1)
                began_s = time.time()
                cluster.add_node(num_cpus=1)
                run.settled()
                taken_s.append(run.newest_form_s() - began_s)
            parts = run.parts()
    finally:
        cluster.close()
    tell(name, found, parts)
    yield from beyond(name, found, NODE_S, None)
    yield from again(name, found, 2.0)
    what = "a node that is started, to its mesh"
    yield cost(what, PROMISE, (statistics.median(taken_s), TAKEN_IN_S), "s")


def scaled(times: int) -> Iterator[Row]:
    """Two nodes as a command starts them, of which one is let go and taken in again."""
    cluster = LocalCluster.start(nodes=2, workers_per_node=WORKERS // 2, warm=True)
    try:
        with struck_run(cluster, WORKERS) as run:
            run.settled()
            taken_s, slower = [], []
            for _ in range(times):
                scale(run, 1)
                few = run.settled(WORKERS // 2)
                quiet_s = run.step_s(few.step)
                began_s = scale(run, 2)
                run.settled()
                taken_s.append(run.newest_form_s() - began_s)
                slower.append(run.step_s(few.step + 1, before_s=began_s + taken_s[-1]) / quiet_s)
            grown_s = run.grown_s()
    finally:
        cluster.close()
    print(f"scaled: meanwhile a step takes {statistics.median(slower):.2f} times as long")
    what = "a node that is wanted, to its mesh"
    yield cost(what, PROMISE, (statistics.median(taken_s), TAKEN_IN_S), "s")
    what = "grow by a node, beyond the step"
    yield cost(what, PROMISE, (statistics.median(grown_s), GROW_S), "s")


def scale(run: StruckRun, nodes: int) -> float:
    """Asks for so many nodes; the moment at which the command began."""
    began_s = time.time()
    command = [sys.executable, "-m", "remesh.cli", "scale", str(run.folder)]
    subprocess.run([*command, "--nodes", str(nodes)], check=True, capture_output=True)
    return began_s


def beside(bin_folder: Path, ours: Mapping[str, Sequence[Blow]], *, quick: bool) -> Iterator[Row]:
    """The seconds to a new step and the steps done again, of the peers that are installed."""
    for fault, trials in TRIALS.items():
        mine = ours.get(f"{fault}, dp 4", ())
        number = 1 if quick else trials
        found = {one.name: trials_of(one, fault, number) for one in peers(bin_folder) if mine}
        for peer, theirs in found.items():
            of_both = (_median(one.new_s for one in mine), _median(one.seconds for one in theirs))
            over = sum(one.again is None for one in theirs) * 2 >= len(theirs)
            yield cost(f"{fault}, to a new step", peer, of_both, "s", over=over)
        for peer, theirs in found.items():
            if known := [one.again for one in theirs if one.again is not None]:
                of_both = (_median(one.again for one in mine), _median(known))
                yield cost(f"{fault}, done again", peer, of_both, "steps")


def trials_of(peer: Contestant, fault: str, trials: int) -> list[Trial]:
    found: list[Trial] = []
    for number in range(trials):
        found.append(disturbed(peer, fault, random.Random(number), GIVEN_S))
        print(f"{fault}, {peer.name}: {found[-1]}", flush=True)
    return found


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def beyond(name: str, found: Sequence[Blow], p50_s: float, p95_s: float | None) -> Iterator[Row]:
    beyond_s = sorted(one.beyond_s for one in found)
    p95 = beyond_s[min(len(beyond_s) - 1, round(0.95 * len(beyond_s)))]
    yield cost(f"{name}, beyond the step, p50", PROMISE, (statistics.median(beyond_s), p50_s), "s")
    if p95_s is not None:
        yield cost(f"{name}, beyond the step, p95", PROMISE, (p95, p95_s), "s")


def again(name: str, found: Sequence[Blow], most: float) -> Iterator[Row]:
    worst = max(one.again for one in found)
    yield cost(f"{name}, steps done again, at most", PROMISE, (worst, most), "steps")
    if worst:
        mean = statistics.fmean(one.again for one in found)
        yield cost(f"{name}, steps done again, mean", PROMISE, (mean, most), "steps")
        slowest_s = max(one.again_s for one in found)
        yield cost(f"{name}, what they took, at most", PROMISE, (slowest_s, INTERVAL_S), "s")


def tell(name: str, found: Sequence[Blow], parts: str) -> None:
    beyond_s = ", ".join(f"{one.beyond_s:.3f}" for one in found)
    lost = ", ".join(str(one.again) for one in found)
    kept = sum(one.kept for one in found)
    print(f"{name}: beyond the step {beyond_s}; done again {lost}")
    went_on = f"the survivors' processes went on in {kept} of {len(found)}"
    print(f"  {went_on}; medians: {parts}", flush=True)


if __name__ == "__main__":
    main()
