"""Simulates many runs: `python -m remesh.orchestrator.sim --seeds 2000`."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from remesh.orchestrator.sim.simulation import SimulationError, simulate


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="remesh.orchestrator.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds, from 0")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print every event and decision")
    arguments = parser.parse_args(words)
    seeds = range(arguments.seeds) if arguments.seed is None else [arguments.seed]
    statuses: Counter[str] = Counter()
    failed = 0
    for seed in seeds:
        try:
            outcome = simulate(seed)
        except SimulationError as error:
            failed += 1
            _say(error.trace if arguments.trace else [], str(error))
            continue
        statuses[outcome.status] += 1
        if arguments.trace:
            _say(outcome.trace, f"seed {seed}: {outcome.status}: {outcome.reason}")
    summary = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    _say([], f"{len(seeds)} seeds: {summary or 'none ended'}; {failed} broke an invariant")
    return 1 if failed else 0


def _say(trace: list[str] | tuple[str, ...], line: str) -> None:
    sys.stdout.write("\n".join([*trace, line]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
