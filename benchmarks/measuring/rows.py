"""What a benchmark found: printed as a table, kept as JSON under results/."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A ratio above 1 means that Remesh is better. None stands for one over nothing.

    `over`: the other one was given up at this figure.
    """

    case: str
    peer: str
    remesh: float
    other: float
    unit: str
    ratio: float | None
    over: bool = False


def cost(case: str, peer: str, costs: tuple[float, float], unit: str, *, over: bool = False) -> Row:
    """A row of two costs, Remesh's first: less is better."""
    row = _row(case, peer, costs, unit, ratio=costs[1] / costs[0] if costs[0] else None)
    return replace(row, over=over)


def rate(case: str, peer: str, rates: tuple[float, float], unit: str) -> Row:
    """A row of two rates, Remesh's first: more is better."""
    return _row(case, peer, rates, unit, ratio=rates[0] / rates[1])


def report(benchmark: str, rows: Sequence[Row]) -> None:
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        print(
            f"{row.case:32} {row.remesh:10.3f} {'>' if row.over else ' '}{row.other:9.3f}"
            f" {row.unit:12} {ratio:>9} x  {row.peer}"
        )
    commit = ["git", "rev-parse", "--short", "HEAD"]
    result = {
        "benchmark": benchmark,
        "commit": subprocess.run(
            commit, capture_output=True, text=True, check=False
        ).stdout.strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{benchmark}.json").write_text(json.dumps(result, indent=1) + "\n")


def _row(
    case: str, peer: str, figures: tuple[float, float], unit: str, *, ratio: float | None
) -> Row:
    ours, theirs = figures
    return Row(
        case=case,
        peer=peer,
        remesh=round(ours, 3),
        other=round(theirs, 3),
        unit=unit,
        ratio=None if ratio is None else round(ratio, 3),
    )
