"""Tiers and their budgets: the folder of a test gives its marker and the time that it may take.

A budget is one of processor time, children included, so that a busy machine fails no test; by the
clock a test may take some times as long, which catches those that wait.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import find, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "builders"))  # for all tiers

# The tiers' budgets bound the time; the same examples each time, since no test may need luck.
settings.register_profile("remesh", deadline=None, derandomize=True, database=None)
settings.load_profile("remesh")

TIERS = ("unit", "sim", "dist", "cluster", "gpu")
BUDGETS_S = {"unit": 1.0, "sim": 15.0}
WAITING_FACTOR = 5
USED_S = pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption("--random-runs", type=int, default=20, help="runs disturbed at random moments")


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
        item.stash[USED_S] = processor_s() - before_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that passes, but not within its tier's budget, fails."""
    report = yield
    budget_s = BUDGETS_S.get(tier_of(item.path))
    if report.when == "call" and report.passed and budget_s:
        used_s = max(item.stash[USED_S], call.duration / WAITING_FACTOR)
        if used_s > budget_s:
            report.outcome = "failed"
            report.longrepr = (
                f"took {item.stash[USED_S]:.2f} s of the processor and {call.duration:.2f} s by "
                f"the clock; its tier allows {budget_s:g} s and {WAITING_FACTOR * budget_s:g} s"
            )
    return report
