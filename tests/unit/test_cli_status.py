import json
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from remesh.cli.status_command import print_json, run_dir_of, show_events, show_status
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
MOMENT_S = 1_800_000_000.0


def wide():
    return Console(width=200, color_system=None)


def test_a_run_is_named_by_its_folder_or_its_job_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    assert run_dir_of(tmp_path) == tmp_path
    assert run_dir_of(TINY) == Path("runs/tiny")
    with pytest.raises(UserError, match="no such run"):
        run_dir_of(tmp_path / "none")


def test_without_a_name_it_is_the_newest_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no run in runs/"):
        run_dir_of(None)
    for age_s, name in enumerate(("new", "old")):
        journal = tmp_path / "runs" / name / "journal"
        journal.mkdir(parents=True)
        os.utime(journal, (MOMENT_S - age_s, MOMENT_S - age_s))
    (tmp_path / "runs" / "data" / "texts").mkdir(parents=True)
    assert run_dir_of(None) == Path("runs/new")


def test_a_status_is_lines_for_values_and_tables_for_lists(capsys):
    show_status(
        wide(),
        {
            "phase": "RUNNING",
            "loss": 2.123456789,
            "deadline_s": None,
            "started_s": MOMENT_S,
            "layout": {"dp": 4, "tp": 1},
            "failures": [],
            "pids": [11, 12],
            "members": [
                {"rank": 0, "worker": "w[1]", "pid": 11},
                {"rank": 1, "worker": "w2", "node": "127.0.0.3"},
            ],
        },
    )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    moment = time.strftime("%H:%M:%S", time.localtime(MOMENT_S))
    assert lines[:7] == [
        "phase       RUNNING",
        "loss        2.1235",
        "deadline s  -",
        f"started s   {moment}",
        "layout      dp=4 tp=1",
        "failures    -",
        "pids        11, 12",
    ]
    assert lines[7] == "members"
    assert [line.split() for line in lines[8:]] == [
        ["rank", "worker", "pid", "node"],
        ["0", "w[1]", "11", "-"],
        ["1", "w2", "-", "127.0.0.3"],
    ]


def test_an_event_is_a_line(capsys):
    show_events(
        wide(),
        [
            {"at_s": MOMENT_S, "text": "w3 lost: killed [9]"},
            {"at_s": MOMENT_S, "kind": "StepsDone", "records": [{"step": 1}, {"step": 2}]},
        ],
    )
    moment = time.strftime("%H:%M:%S", time.localtime(MOMENT_S))
    assert capsys.readouterr().out.splitlines() == [
        f"{moment}  w3 lost: killed [9]",
        f"{moment}  kind=StepsDone  records=2",
    ]


def test_json_is_neither_wrapped_nor_coloured(capsys):
    value = {"reason": "x" * 500, "loss": 2.123456789}
    print_json(value)
    assert json.loads(capsys.readouterr().out) == value
