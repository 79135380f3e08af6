"""Tiers: the folder of a test gives its marker and the time that it should take.

A test that takes longer is named at the end and passes all the same: how long something takes says
more about the machine than about the code. What code may cost is counted (support/counted.py),
what it takes is measured under benchmarks/.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import find, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "support"))  # for all tiers

# The same examples each time, since no test may need luck.
settings.register_profile("remesh", deadline=None, derandomize=True, database=None)
settings.load_profile("remesh")

TIERS = ("unit", "sim", "dist", "cluster", "gpu")
BUDGETS_S = {"unit": 1.0, "sim": 15.0}  # of processor time, with that of child processes
SLOW = pytest.StashKey[list[tuple[float, str]]]()


def pytest_addoption(parser):
    parser.addoption("--schedules", type=int, default=4, help="runs through a schedule of faults")
    parser.addoption("--strikes", type=int, default=2, help="faults of a schedule: 2 or 4")
    parser.addoption("--hungry-s", type=float, default=20.0, help="seconds beside busy processes")
    parser.addoption("--zombies", type=int, default=12, help="ranks that go on after eviction")
    parser.addoption("--generations", type=int, default=12, help="that one rank lives through")
    parser.addoption("--all-pairs", action="store_true", help="each layout from each other one")
    parser.addoption("--file-changes", type=int, default=20, help="changed files of a run")


def pytest_configure(config):
    config.stash[SLOW] = []


def pytest_collection_finish():
    """Hypothesis makes its table of characters in a fresh checkout: a second that is no test's."""
    find(st.text(), lambda _: True)


def tier_of(path):
    parts = Path(path).relative_to(Path(__file__).parent).parts
    return parts[0] if parts[0] in TIERS else None


def processor_s():
    return sum(os.times()[:4])


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and (tier := tier_of(item.path)):
            item.add_marker(tier)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before_s = processor_s()
    try:
        return (yield)
    finally:
        note_cost(item, processor_s() - before_s)


def note_cost(item, used_s):
    budget_s = BUDGETS_S.get(tier_of(item.path))
    if budget_s and used_s > budget_s:
        item.config.stash[SLOW].append((used_s, f"{budget_s:g} s: {item.nodeid}"))


def pytest_terminal_summary(terminalreporter, config):
    slow = sorted(config.stash[SLOW], reverse=True)
    if slow:
        terminalreporter.section("passed all the same, though over the budget of their tier")
    for used_s, what in slow:
        terminalreporter.write_line(f"{used_s:6.2f} s of {what}")
