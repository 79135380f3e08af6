"""Which seeds of the simulator and which unit tests call which function of the machines.

What never calls a function cannot notice that it is broken: so a mutant of it is tried by the
others only. The same run shows that nothing fails of the machines as they are.
"""

import os
import sys
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORCHESTRATOR = str(ROOT / "orchestrator") + os.sep
TESTS = (
    "test_control_*.py",
    "test_seat*.py",
    "test_rank_slots.py",
    "test_vault_*.py",
    "test_stuck_workers.py",
    "test_actors_journal_files.py",
    "test_blame.py",
    "test_codec.py",
    "test_conformance.py",
    "test_deadlines.py",
    "test_drawn_events.py",
    "test_fault_moments.py",
    "test_mistrust.py",
    "test_not_finite.py",
    "test_readme.py",
    "test_reports.py",
    "test_second_tries.py",
    "test_set_aside.py",
    "test_snapshot_pace.py",
    "test_starts.py",
    "test_trainer.py",
)
OF_SCALE = ("thousand", "costs_the_same")  # they take long, and look at what something costs
QUIET = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--no-summary"]
HOLDS = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def files_of(patterns):
    return [str(f) for one in patterns for f in sorted((ROOT / "tests/unit").glob(one))]


class Callers:
    """`of` has who called each function, by the function's file and name: a seed, or a test."""

    def __init__(self):
        self.of = defaultdict(list)
        self._names = {}

    @contextmanager
    def noted(self, caller):
        """What is called meanwhile is called by this one."""
        seen = set()

        def note(frame, event, _argument):
            if event == "call":
                seen.add(frame.f_code)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)
            for name in sorted(set(filter(None, map(self._name, seen)))):
                self.of[name].append(caller)

    def _name(self, code):
        if code not in self._names:
            path = os.path.realpath(code.co_filename)
            function = code.co_qualname.partition(".<locals>")[0]
            ours = path.startswith(ORCHESTRATOR)
            self._names[code] = f"{Path(path).relative_to(ROOT)}::{function}" if ours else ""
        return self._names[code]


class Picked:
    """Of pytest: none of scale, and only those that are wanted. `noted` watches each."""

    def __init__(self, wanted=None, noted=None):
        self.wanted, self.noted = wanted, noted

    def pytest_collection_modifyitems(self, items):
        small = [one for one in items if not any(word in one.name for word in OF_SCALE)]
        items[:] = [one for one in small if self.wanted is None or one.nodeid in self.wanted]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        with self.noted(item.nodeid) if self.noted else nullcontext():
            return (yield)


def tests_hold(files, picked):
    """Whether those that are picked pass; none is as good as all."""
    return not files or pytest.main([*QUIET, *files], plugins=[picked]) in HOLDS


def callers(seeds):
    """By function, the seeds and tests that call it. Raises: SystemExit if one of them fails."""
    from remesh.orchestrator.sim.draws import simulate  # noqa: PLC0415 - with what it imports

    found = Callers()
    for seed in range(seeds):
        with found.noted(seed):
            simulate(seed)
    if not tests_hold(files_of(TESTS), Picked(noted=found.noted)):
        raise SystemExit("the tests fail of the machines as they are")
    return found.of
