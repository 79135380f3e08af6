"""Simulates many runs: `python -m remesh.orchestrator.sim --seeds 2000`, or `--seeds 500..999`.

A range of seeds is shared out over the processors. It fails if an invariant was broken, and if some
event, command, move or deadline of the machine was never reached, unless they are too few seeds to
tell.
"""

import argparse
import sys
from collections.abc import Sequence

from remesh.orchestrator.sim.checks.coverage import everything
from remesh.orchestrator.sim.checks.line_coverage import LineCoverage
from remesh.orchestrator.sim.draws import simulate
from remesh.orchestrator.sim.many import Sum, shared_out, simulated
from remesh.orchestrator.sim.simulation import SimulationError

ENOUGH = 20_000  # seeds, to have come everywhere
SAY_EVERY = 1000


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="remesh.orchestrator.sim", description=__doc__)
    parser.add_argument("--seeds", default="100", help="how many, from 0, or FIRST..LAST")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened")
    parser.add_argument("--reached", action="store_true", help="print how often what was reached")
    parser.add_argument("--lines", action="store_true", help="print the lines that never ran")
    arguments = parser.parse_args(words)
    if arguments.seed is not None:
        return _one(arguments.seed, trace=arguments.trace)
    seeds = _range(arguments.seeds)
    if arguments.lines:
        return _lines_never_run(seeds)
    total = Sum()
    for part in shared_out(seeds):
        for line in part.broken:
            _say(line)
        before = total.seeds
        total.add(part)
        if len(seeds) > SAY_EVERY and before // SAY_EVERY != total.seeds // SAY_EVERY:
            _say(f"{total.seeds} of {len(seeds)} seeds")
    if arguments.reached:
        for name, count in sorted(total.reached.items()):
            _say(f"{count:9} {name}")
    return _verdict(total)


def _verdict(total: Sum) -> int:
    summary = ", ".join(f"{count} {status}" for status, count in sorted(total.statuses.items()))
    _say(f"{total.seeds} seeds: {summary or 'none ended'}; {len(total.broken)} broke an invariant")
    missing = sorted(everything() - total.reached.keys()) if total.seeds >= ENOUGH else []
    for name in missing:
        _say(f"never reached: {name}")
    return 1 if total.broken or missing else 0


def _one(seed: int, *, trace: bool) -> int:
    try:
        outcome = simulate(seed)
    except SimulationError as error:
        story, line, code = error.trace, str(error), 1
    else:
        story, line, code = list(outcome.trace), f"{outcome.status}: {outcome.reason}", 0
    for said in story if trace else []:
        _say(said)
    _say(line if code else f"seed {seed}: {line}")
    return code


def _lines_never_run(seeds: range) -> int:
    """In one process: it takes its time."""
    watch, total = LineCoverage(), Sum()
    watch.during(lambda: total.add(simulated(seeds)))
    for line in watch.missing():
        _say(line)
    return _verdict(total)


def _range(text: str) -> range:
    """Such as "100", or "20..29", both ends included."""
    first, dots, last = text.partition("..")
    return range(int(first), int(last) + 1) if dots else range(int(text))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
