"""Every event has its row, every word is stale in the same way, and every match has an end."""

import ast
import re
from dataclasses import fields
from typing import get_args

import pytest
from control_drive import Drive, records, running
from test_rooms import ROOT, files

from remesh.orchestrator.control.handlers import table
from remesh.orchestrator.control.handlers.table import HANDLERS
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.codec import encode

# Matches over texts, over what comes from outside, or over a few events or operations of many.
OPEN = {
    "actors/agent/forker.py news",
    "actors/agent/household.py _hear",
    "actors/agent/household.py _note",
    "actors/agent/node_loop.py _obey",
    "actors/agent/warm_process.py _obey",
    "actors/jobs/cluster_jobs.py code",
    "actors/worker/trainer.py _hear",
    "api/cli/driving/drive.py exit_code",
    "api/cli/main.py _explain",
    "api/cli/screen/shapes.py _cell",
    "orchestrator/job/overrides.py _written",
    "orchestrator/job/problems.py _text",
    "orchestrator/sim/checks/ends.py note",
    "orchestrator/sim/checks/invariants.py _note",
    "orchestrator/sim/checks/invariants.py _note_state",
    "orchestrator/sim/draws.py _as_expected",
    "orchestrator/sim/shells/process.py _carry_out",
    "orchestrator/worker/conformance.py _end_duties",
    "orchestrator/worker/conformance.py _step_of",
    "orchestrator/worker/conformance.py _words",
    "parallel/groups/strict/referee_service.py _answered",
    "parallel/plan/book/verdict.py shown",
    "parallel/plan/schedules/checks/company.py visits",
    "parallel/plan/schedules/checks/deadlocks.py given",
    "parallel/plan/schedules/checks/deadlocks.py taken",
    "parallel/plan/schedules/timing/timeline.py of",
    "parallel/plan/shares.py share",
    "parallel/step/borders.py _received",
    "parallel/step/needed_weights.py plan_phases",
}


def test_the_table_has_a_row_for_each_event_and_no_other():
    assert HANDLERS.keys() == set(get_args(ev.Event))
    assert len({handler.act for handler in HANDLERS.values()}) == len(HANDLERS)


def test_an_event_about_a_generation_says_whose_word_counts():
    for kind, handler in HANDLERS.items():
        names = {field.name for field in fields(kind)}
        if {"worker", "generation"} <= names and ("step" not in names or "operation" in names):
            assert handler.counts in (table.of_a_member, table.of_a_worker), kind
        elif {"generation", "step"} <= names:
            assert handler.counts in (table.of_the_lineage, table.of_the_lineage_or_the_end), kind


VALUES = {
    "error": "it broke",
    "reason": "there is no room",
    "at_step": 9,
    "drained": True,
    "records": records(12, 14, 1.0),
    "form_s": 1.0,
    "restore_s": 1.0,
    "name": "",
    "user_error": True,
    "certain": True,
    "files": (),
    "step": 11,
    "held_in": 1,
    "fenced": False,
    "operation": 3,
    "phase": "forward",
    "silent_s": 2.0,
}


def told(kind, **values):
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in {**VALUES, **values}.items() if name in names})


@pytest.mark.parametrize(
    "kind",
    [kind for kind, handler in HANDLERS.items() if handler.counts is not table.of_anybody],
    ids=lambda kind: kind.__name__,
)
def test_a_stale_word_changes_nothing(kind):
    """Of the generation before, of one to come, and of a worker that nobody knows."""
    names = {field.name for field in fields(kind)}
    drive = running(10)
    drive.lose(drive.members[0])
    drive.park(10)
    drive.train(11)
    stale_words = [{"generation": 1}, {"generation": 3}]
    if "worker" in names and "step" not in names:
        stale_words.append({"worker": "worker-999", "generation": drive.state.last_generation})
    for stale in stale_words:
        before = encode(State, drive.state)
        drive.do(told(kind, **{"worker": drive.members[0], **stale}))
        assert encode(State, drive.state) == before


def test_a_worker_of_no_generation_may_say_that_the_job_is_wrong():
    drive = Drive()
    drive.ready()
    worker = next(iter(drive.state.roster.workers))
    drive.do(told(ev.WorkerErred, worker="worker-999", generation=0))
    assert drive.state.phase == "forming"
    drive.do(told(ev.WorkerErred, worker=worker, generation=0))
    assert drive.state.phase == "failed"


def test_who_has_lost_the_run_ends_whatever_the_step_was():
    drive = running(10)
    drive.do(told(ev.CommitFailed, generation=99, step=99, fenced=True))
    assert drive.state.phase == "failed"


def endless(tree):
    """The functions with a match that some value may fall through, by its last case."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Match) and not ends(node.cases[-1]):
                    yield function.name


def ends(case):
    """Whether it is `case _:` and raises, or lets mypy prove that nothing gets there."""
    catches_all = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
    last = case.body[-1]
    called = (
        last.value.func if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else 0
    )
    never = isinstance(called, ast.Name) and called.id == "assert_never"
    return catches_all and case.guard is None and (never or isinstance(last, ast.Raise))


def test_every_match_has_an_end():
    found = set()
    for path in [*files().values(), ROOT / "api" / "__init__.py"]:
        text = path.read_text()
        if re.search(r"^ *match .+:$", text, re.MULTILINE):
            where = path.relative_to(ROOT)
            found |= {f"{where} {name}" for name in endless(ast.parse(text))}
    assert found == OPEN


@pytest.mark.parametrize(
    ("last", "is_end"),
    [
        ("case _: assert_never(x)", True),
        ("case other: raise ValueError(other)", True),
        ("case _: return 1", False),
        ("case 2: raise ValueError", False),
        ("case _ if x: raise ValueError", False),
        ("case _: print(assert_never)", False),
    ],
)
def test_an_end_is_seen(last, is_end):
    tree = ast.parse(f"def f(x):\n  match x:\n    case 1: pass\n    {last}")
    assert list(endless(tree)) == ([] if is_end else ["f"])
