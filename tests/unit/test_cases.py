"""tests/cases.toml: which test shows each fault that is known of systems like this one."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import needed
import pytest

TESTS = Path(__file__).parents[1]
TABLES = tomllib.loads((TESTS / "cases.toml").read_text())
ROW = re.compile(
    r"^(?:\| (?P<case>B\d{3}|M\d\d) |\| (?P<fault>\d+[a-z]?) \|"
    r"|### (?P<heading>[A-Z]\d+)\.|\*\*(?P<bold>[A-Z]\d+)\.|(?P<item>\d+)\. )",
    re.MULTILINE,
)
BY_NUMBER = {"inputs", "parallel", "security", "user"}
# What stands below are wishes and figures: they have numbers of their own, or none.
ENDS = {"parallel": "## B. ", "speed": "## 1. ", "user": "### 1.1 "}


def rows_of(table):
    path = "cases.md" if table == "cases" else f"faults/{table}.md"
    text = needed.shared(path).read_text()
    text = text.partition(ENDS[table])[0] if table in ENDS else text
    return [next(filter(None, found.groups())) for found in ROW.finditer(text)]


def named():
    return [
        (f"{table} {row}", test)
        for table, rows in TABLES.items()
        for row, entry in rows.items()
        if not isinstance(entry, dict)
        for test in entry
    ]


@pytest.mark.parametrize("table", ["cases", "control", "inputs", "parallel", "security", "user"])
def test_every_row_has_its_test_or_the_reason_why_there_is_none(table):
    found = rows_of(table)
    assert len(found) > 10
    assert sorted(found) == sorted(TABLES[table])


def test_so_has_every_fault_that_costs_speed():
    assert rows_of("speed") == list(TABLES["speed"])


def test_every_table_is_looked_at():
    files = {path.stem for path in needed.shared("faults").iterdir()}
    assert files | {"cases"} == TABLES.keys()


def test_each_test_that_is_named_exists():
    assert not [test for _, test in named() if test not in functions_of(test.partition("::")[0])]


@cache
def functions_of(path):
    file = TESTS.parent / path
    nodes = ast.parse(file.read_text()).body if file.is_file() else []
    return {f"{path}::{node.name}" for node in nodes if isinstance(node, ast.FunctionDef)}


def test_a_fault_is_found_by_its_number_in_the_file_of_its_test():
    rows = {row for row, _ in named() if row.partition(" ")[0] in BY_NUMBER}
    assert not rows - {row for row, test in named() if says(test, *row.split())}


def says(test, table, row):
    """Whether the file names it, alone or in a row such as "security A2, A3 and B4"."""
    text = (TESTS.parent / test.partition("::")[0]).read_text()
    return re.search(rf"\b{table} ([A-Z]?\d+[a-z]?(, | and |, and ))*{row}\b", text)


def test_a_reason_is_a_sentence():
    entries = [entry for rows in TABLES.values() for entry in rows.values()]
    assert all(entries)
    reasons = [entry["not_yet"] for entry in entries if isinstance(entry, dict)]
    assert all(len(reason.split()) > 3 for reason in reasons)
