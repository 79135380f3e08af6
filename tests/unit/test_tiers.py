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


@pytest.fixture
def session(tiers):
    """Notes what tests cost, and tells the summary line by line."""
    config = SimpleNamespace(stash={})
    tiers.pytest_configure(config)
    lines = []
    reporter = SimpleNamespace(section=lines.append, write_line=lines.append)

    def note(folder, used_s):
        path = TESTS / folder / "test_it.py"
        item = SimpleNamespace(path=path, nodeid=f"{folder}-{used_s:g}", config=config)
        tiers.note_cost(item, used_s)

    def summary():
        tiers.pytest_terminal_summary(reporter, config)
        return lines

    return SimpleNamespace(note=note, summary=summary, config=config)


def test_what_is_over_the_budget_of_its_tier_is_told_slowest_first(session):
    for folder, used_s in [("unit", 0.9), ("unit", 1.1), ("sim", 14), ("sim", 16), ("dist", 99)]:
        session.note(folder, used_s)
    _, *told = session.summary()
    assert told == [" 16.00 s of 15 s: sim-16", "  1.10 s of 1 s: unit-1.1"]


def test_nothing_is_told_of_a_run_within_its_budgets(session):
    session.note("unit", 0.5)
    assert session.summary() == []


def test_a_costly_test_passes_and_the_processes_that_it_starts_count(tiers, session, monkeypatch):
    monkeypatch.setitem(tiers.BUDGETS_S, "unit", 0.02)
    path = TESTS / "unit" / "test_it.py"
    hook = tiers.pytest_runtest_call(
        SimpleNamespace(path=path, nodeid="costly", config=session.config)
    )
    next(hook)
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    with pytest.raises(StopIteration):
        hook.send(None)
    (_, told) = session.summary()
    assert told.endswith("s of 0.02 s: costly")


def test_a_test_has_the_marker_of_its_folder(request):
    assert request.node.get_closest_marker("unit")
