"""No figure stands in the README that was not measured: each is compared with benchmarks/results/.

A table belongs to the `benchmarks/results/NAME.json` that is named last before it.
"""

import json
import re
from decimal import Decimal
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text()
RECOVERY = RESULTS / "recovery.json"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def measured(name):
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def shown_rows():
    """(name of the benchmark, case, peer, figures as text) of each row of the README's tables."""
    benchmark = None
    for line in README.splitlines():
        if named := re.findall(r"`benchmarks/results/(\w+)\.json`", line):
            benchmark = named[-1]
        if line.startswith("## "):
            benchmark = None
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if benchmark and line.startswith("| ") and NUMBER.search(cells[-1]):
            figures = [text for cell in cells[2:] for text in NUMBER.findall(cell)]
            yield benchmark, cells[0], cells[1], figures


def words(text):
    return set(re.findall(r"\w[\w+]*", text))


def rounds_to(value, shown):
    """Whether a figure, written with as many places, is what is shown."""
    text = shown.replace(",", "")
    places = len(text.partition(".")[2])
    return abs(Decimal(str(value)) - Decimal(text)) <= Decimal("0.5001").scaleb(-places)


def unmeasured(row):
    benchmark, case, peer, figures = row
    found = [
        one[key]
        for one in measured(benchmark)
        if one["peer"].startswith(peer) and words(case) <= words(one["case"])
        for key in ("remesh", "other", "ratio")
        if one[key] is not None
    ]
    return [figure for figure in figures if not any(rounds_to(value, figure) for value in found)]


def beside_others():
    """The table of `benchmarks/recovery.py`, a column for each that was measured."""
    rows = measured("recovery")
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    yield f"| | Remesh | {' | '.join(peers)} |"
    yield "|---" * (len(peers) + 2) + "|"
    for case, group in groupby(rows, key=lambda row: row["case"]):
        found = {row["peer"]: row for row in group}
        one = next(iter(found.values()))
        cells = [f"{one['remesh']:.3g} {one['unit']}", *(told(found.get(peer)) for peer in peers)]
        yield f"| {case} | {' | '.join(cells)} |"


def told(row):
    """What another one took, or what it was given until it was given up."""
    if row is None:
        return ""
    return f"{'over ' if row.get('over') else ''}{row['other']:.3g} {row['unit']}"


@pytest.mark.parametrize("row", [row for row in shown_rows() if row[0] != "recovery"], ids=str)
def test_a_figure_is_one_that_was_measured(row):
    assert unmeasured(row) == []


@pytest.mark.skipif(not RECOVERY.exists(), reason="benchmarks/recovery.py has not been run yet")
def test_the_table_beside_others_is_what_was_measured():
    lines = list(beside_others())
    assert "\n".join(lines) in README, "put it there:\n" + "\n".join(lines)


def test_one_that_was_given_up_is_told_as_over_what_it_was_given():
    row = {"other": 60.0, "unit": "s"}
    assert [told(one) for one in (row, {**row, "over": True}, None)] == ["60 s", "over 60 s", ""]
