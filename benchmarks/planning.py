"""What decisions and plans cost at the size of the largest runs, against what a recovery allows.

The peer is a budget: seconds of one processor that the plan may take, so that what is planned does
not notice. That a cost grows with the size of the problem and not with its square is counted in the
unit tests, with the same problems; here stands how long it takes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring.rows import Row, cost, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # their problems

import sized
from moved_state import a_rank_lost_of, its_moves
from tallied_drive import scrape

from remesh.orchestrator.control.words.recovery import decide_restore
from remesh.parallel.state.fragments import cover_problems
from remesh.parallel.state.reshard import reshard
from remesh.parallel.state.writers import writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`made` makes a new problem, whose solution is timed."""

    name: str
    made: Callable[[], Any]
    solved: Callable[[Any], object]
    budget_s: float

    def row(self, rounds: int) -> Row:
        taken_s = statistics.median(self._taken_s() for _ in range(rounds))
        return cost(self.name, "budget", (1e3 * taken_s, 1e3 * self.budget_s), "ms")

    def _taken_s(self) -> float:
        problem = self.made()
        start_s = time.process_time()
        self.solved(problem)
        return time.process_time() - start_s


CASES = (
    Case(
        name="4,096 slices checked",
        made=lambda: sized.slices(4096),
        solved=cover_problems,
        budget_s=0.5,
    ),
    Case(
        name="4,096 columns checked",
        made=lambda: sized.columns(4096),
        solved=cover_problems,
        budget_s=0.5,
    ),
    Case(
        name="10,000 fragments resharded",
        made=lambda: sized.stripes(10_000),
        solved=lambda problem: reshard(*problem, 1),
        budget_s=0.6,
    ),
    Case(
        name="5,000 columns resharded",
        made=lambda: sized.row_of_tiles(5_000),
        solved=lambda problem: reshard(*problem, 1),
        budget_s=0.4,
    ),
    Case(
        name="70 x 70 tiles resharded",
        made=lambda: sized.square_of_tiles(4_900),
        solved=lambda problem: reshard(*problem, 1),
        budget_s=0.4,
    ),
    Case(
        name="own moves of a rank, 8B, 256 to 255",
        made=lambda: a_rank_lost_of(256),
        solved=its_moves,
        budget_s=0.2,
    ),
    Case(
        name="own moves of a rank, 8B, one of 16,384 lost",
        made=lambda: a_rank_lost_of(16_384),
        solved=its_moves,
        budget_s=1.0,
    ),
    Case(
        name="10,000 fragments dealt to writers",
        made=lambda: sized.replicated_by_eight(10_000),
        solved=lambda problem: writes(problem, 3),
        budget_s=0.3,
    ),
    Case(
        name="a loss among 16,384 members",
        made=lambda: sized.a_loss_among(2048)[1],
        solved=lambda lose_one: lose_one(),
        budget_s=1.0,
    ),
    Case(
        name="a lost part among 16,384 members",
        made=lambda: sized.a_lost_part_among(2048)[1],
        solved=lambda lose_one: lose_one(),
        budget_s=1.0,
    ),
    Case(
        name="98,304 slots of vaults weighed",
        made=lambda: sized.slots_of(2048),
        solved=lambda problem: decide_restore(*problem),
        budget_s=1.0,
    ),
    Case(
        name="a scrape of 4,096 ranks",
        made=lambda: sized.scraped(512),
        solved=scrape,
        budget_s=0.5,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    report("planning", [case.row(rounds) for case in CASES])


if __name__ == "__main__":
    main()
