import json
import os
import time
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console
from written_run import written_run

import remesh
from remesh.cli.main import main
from remesh.cli.screen.shapes import show_values
from remesh.cli.status_command import follow_events, print_json, show_events, watch_status
from remesh.orchestrator.user_errors import UserError
from remesh.runs import run_dir_of

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


def test_values_are_lines_and_lists_of_them_are_tables(capsys):
    show_values(
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
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(MOMENT_S))
    assert lines[:7] == [
        "phase       RUNNING",
        "loss        2.1235",
        "deadline_s  -",
        f"started_s   {moment}",
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


def test_an_event_is_a_line_in_a_pipe(capsys):
    sentence = "w3 lost: killed [9]" + " and so on" * 30
    show_events(
        wide(),
        [
            {"at_s": MOMENT_S, "text": sentence},
            {"at_s": MOMENT_S, "kind": "StepsDone", "records": [{"step": 1}, {"step": 2}]},
        ],
    )
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(MOMENT_S))
    assert capsys.readouterr().out.splitlines() == [
        f"{moment}  {sentence}",
        f"{moment}  kind=StepsDone  records=2",
    ]


def test_a_terminal_wraps_an_event_below_itself(capsys):
    console = Console(width=40, force_terminal=True, color_system=None)
    show_events(console, [{"at_s": MOMENT_S, "text": "one two three four five six"}])
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("  one two three four")
    assert second == " " * 21 + "five six"


def told(folder, phase="running"):
    return {**remesh.attach(folder).status(), "phase": phase, "ended": phase == "finished"}


def test_a_watched_page_is_drawn_until_the_run_ends(tmp_path, capsys):
    written_run(tmp_path)
    phases = iter(["running", "draining", "finished"])
    waits = []
    watch_status(wide(), lambda: told(tmp_path, next(phases)), wait=waits.append)
    assert waits == [1.0, 1.0]
    assert "finished: all 20 steps are done and saved" in capsys.readouterr().out


def test_ctrl_c_ends_watching_and_following_and_nothing_else(tmp_path, capsys):
    written_run(tmp_path)

    def ctrl_c(_):
        raise KeyboardInterrupt

    watch_status(wide(), lambda: told(tmp_path), wait=ctrl_c)
    follow_events(wide(), Growing(tmp_path, "running"), wait=ctrl_c)
    assert "generation 2" in capsys.readouterr().out


class Growing:
    """A run that tells of one event more each time, in these phases."""

    def __init__(self, folder, *phases):
        self._run = remesh.attach(folder)
        self._phases = list(phases)
        self._asked = 0

    def status(self):
        phase = self._phases.pop(0) if len(self._phases) > 1 else self._phases[0]
        return {"phase": phase, "ended": phase == "finished"}

    def events(self):
        self._asked += 1
        return self._run.events()[: self._asked]


def test_events_are_followed_to_the_end_and_each_is_told_once(tmp_path, capsys):
    written_run(tmp_path)
    waits = []
    run = Growing(tmp_path, "running", "running", "finished")
    follow_events(wide(), run, wait=waits.append)
    expected = [event["text"] for event in remesh.attach(tmp_path).events()[:3]]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == expected
    assert len(waits) == 2


@pytest.mark.parametrize("command", [["status", "--watch", "--json"], ["events", "-f", "--json"]])
def test_a_program_is_not_shown_what_moves(tmp_path, command, capsys):
    written_run(tmp_path)
    assert main([*command, str(tmp_path)]) == 2
    assert "leave out --json" in capsys.readouterr().err


def test_json_is_neither_wrapped_nor_coloured(capsys):
    value = {"reason": "x" * 500, "loss": 2.123456789}
    print_json(value)
    assert json.loads(capsys.readouterr().out) == value


def test_json_has_a_date_beside_each_moment(capsys):
    """user 14"""
    print_json({"at_s": MOMENT_S, "step_s": 0.5, "inner": [{"died_at_s": MOMENT_S, "at": 1}]})
    told = json.loads(capsys.readouterr().out)
    assert datetime.fromisoformat(told["at"]).timestamp() == MOMENT_S
    assert datetime.fromisoformat(told["at"]).tzinfo is not None
    assert told["inner"][0].keys() == {"died_at_s", "died_at", "at"}
    assert told.keys() == {"at_s", "at", "step_s", "inner"}
