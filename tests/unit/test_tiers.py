import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tiers():
    spec = importlib.util.spec_from_file_location("tiers", TESTS / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reported(tiers, folder, duration_s, outcome="passed", when="call"):
    report = SimpleNamespace(when=when, outcome=outcome, passed=outcome == "passed", longrepr=None)
    item = SimpleNamespace(path=TESTS / folder / "test_it.py")
    hook = tiers.pytest_runtest_makereport(item, SimpleNamespace(duration=duration_s))
    next(hook)
    with pytest.raises(StopIteration) as stop:
        hook.send(report)
    return stop.value.value


@pytest.mark.parametrize(("folder", "budget_s"), [("unit", 1), ("sim", 15)])
def test_a_slow_test_fails_in_its_tier(tiers, folder, budget_s):
    assert reported(tiers, folder, budget_s - 0.1).outcome == "passed"
    slow = reported(tiers, folder, budget_s + 0.1)
    assert slow.outcome == "failed"
    assert f"its tier allows {budget_s} s" in slow.longrepr


def test_other_tiers_setups_and_failures_are_left_alone(tiers):
    assert reported(tiers, "dist", 100).outcome == "passed"
    assert reported(tiers, "unit", 100, when="setup").outcome == "passed"
    assert reported(tiers, "unit", 100, outcome="skipped").longrepr is None


def test_a_test_has_the_marker_of_its_folder(request):
    assert request.node.get_closest_marker("unit")
