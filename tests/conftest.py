"""Tiers and their budgets: the folder of a test gives its marker and the time that it may take."""

from pathlib import Path

import pytest

TIERS = ("unit", "sim", "dist", "cluster", "gpu")
BUDGETS_S = {"unit": 1.0, "sim": 15.0}


def tier_of(path):
    parts = Path(path).relative_to(Path(__file__).parent).parts
    return parts[0] if parts[0] in TIERS else None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and (tier := tier_of(item.path)):
            item.add_marker(tier)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that passes, but not within its tier's budget, fails."""
    report = yield
    budget_s = BUDGETS_S.get(tier_of(item.path))
    if report.when == "call" and report.passed and budget_s and call.duration > budget_s:
        report.outcome = "failed"
        report.longrepr = f"took {call.duration:.2f} s; its tier allows {budget_s:g} s"
    return report
