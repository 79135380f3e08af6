import importlib.util
import subprocess
import sys
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


def reported(tiers, folder, used_s, *, duration_s=0.0, outcome="passed", when="call"):
    report = SimpleNamespace(when=when, outcome=outcome, passed=outcome == "passed", longrepr=None)
    stash = {tiers.USED_S: used_s} if when == "call" else {}
    item = SimpleNamespace(path=TESTS / folder / "test_it.py", stash=stash)
    hook = tiers.pytest_runtest_makereport(item, SimpleNamespace(duration=duration_s))
    next(hook)
    with pytest.raises(StopIteration) as stop:
        hook.send(report)
    return stop.value.value


@pytest.mark.parametrize(("folder", "budget_s"), [("unit", 1), ("sim", 15)])
def test_a_costly_test_fails_in_its_tier(tiers, folder, budget_s):
    assert reported(tiers, folder, budget_s - 0.1).outcome == "passed"
    slow = reported(tiers, folder, budget_s + 0.1)
    assert slow.outcome == "failed"
    assert f"its tier allows {budget_s} s" in slow.longrepr


def test_a_test_that_waits_fails_in_its_tier(tiers):
    assert reported(tiers, "unit", 0.1, duration_s=4.9).outcome == "passed"
    assert reported(tiers, "unit", 0.1, duration_s=5.1).outcome == "failed"


def test_other_tiers_setups_and_failures_are_left_alone(tiers):
    assert reported(tiers, "dist", 100).outcome == "passed"
    assert reported(tiers, "unit", 100, when="setup").outcome == "passed"
    assert reported(tiers, "unit", 100, outcome="skipped").longrepr is None


def test_time_is_counted_in_processes_that_a_test_starts(tiers):
    item = SimpleNamespace(stash={})
    hook = tiers.pytest_runtest_call(item)
    next(hook)
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    with pytest.raises(StopIteration):
        hook.send(None)
    assert 0.02 < item.stash[tiers.USED_S] < 1


def test_a_test_has_the_marker_of_its_folder(request):
    assert request.node.get_closest_marker("unit")
