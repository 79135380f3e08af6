"""Every death leaves its traceback (user 12): in the event, in the run's folder, by a command."""

import ast
from pathlib import Path

import pytest
from control_values import options

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.status import read_events
from remesh.cli.main import main
from remesh.orchestrator.control.words.events import RunStarted, WorkerLost

ROOT = Path(__file__).parents[2]
RAISED = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: odd\n'


@pytest.fixture
def run_dir(tmp_path):
    """A run whose worker-3 has raised, and has written more than that."""
    folder = tmp_path / "a-run"
    writer = JournalWriter(folder, 1, options())
    writer.event(RunStarted(), 1.0)
    lost = WorkerLost(worker="worker-3", cause="ValueError: odd", traceback=RAISED)
    writer.event(lost, 2.0)
    writer.announcement("leaving generation 1: worker-3 was lost", 2.0)
    logs = folder / "logs"
    logs.mkdir()
    (logs / "worker-3.log").write_text("a warning\n" + RAISED)
    (logs / "worker-12.log").write_text("one\ntwo\n")
    return folder


def test_events_tell_the_first_line_and_as_json_the_traceback(run_dir, capsys):
    lost, left = read_events(run_dir)
    assert lost == {"at_s": 2.0, "text": "worker-3: ValueError: odd", "traceback": RAISED}
    assert "traceback" not in left
    assert main(["events", str(run_dir)]) == 0
    told = capsys.readouterr().out
    assert "worker-3: ValueError: odd" in told
    assert "x.py" not in told


def test_logs_of_a_run_are_listed_with_the_end_of_the_dead(run_dir, capsys):
    assert main(["logs", str(run_dir)]) == 0
    told = capsys.readouterr().out
    assert "worker-12" in told
    assert "two" in told
    assert "a warning" in told
    assert 'File "x.py", line 1' in told


def test_stacks_are_asked_of_a_live_run(run_dir, capsys):
    assert main(["stacks", str(run_dir)]) == 2
    assert "no run is alive here" in capsys.readouterr().err


def test_no_thread_is_started_that_nobody_listens_to():
    """Threads start in parallel/threads.py only, and what is submitted is kept to be asked."""
    found = []
    for top in ("actors", "parallel", "data", "orchestrator", "api"):
        for path in (ROOT / top).rglob("*.py"):
            where = path.relative_to(ROOT).as_posix()
            if where != "parallel/threads.py":
                found += [f"{where}:{line}" for line in unheard(path.read_text())]
    assert found == []


def unheard(text):
    """The lines that start a thread, or submit work whose outcome nobody can ask for."""
    for node in ast.walk(ast.parse(text)):
        is_call = isinstance(node, ast.Call)
        if is_call and ast.unparse(node.func) in ("Thread", "threading.Thread", "Timer"):
            yield node.lineno
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value.func
            is_submit = isinstance(call, ast.Attribute) and call.attr == "submit"
            if is_submit and ast.unparse(call.value) != "jobs":  # a cluster's job server
                yield node.lineno


def test_a_thread_of_ones_own_would_be_seen():
    assert list(unheard("import threading\nthreading.Thread(target=f).start()")) == [2]
    assert list(unheard("pool.submit(f)\nkept = pool.submit(f)")) == [1]
