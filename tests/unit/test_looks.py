"""What people look at first: nothing cut, nothing stale, nothing silent."""

import json
import os
from pathlib import Path

import pytest
from control_drive import Drive
from rich.console import Console
from written_run import written_run

import remesh
from remesh.cli.main import main
from remesh.cli.screen.progress import PlainDisplay
from remesh.cli.screen.shapes import show_values
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.driver_words import RunStatus, RunWait

ROOT = Path(__file__).parents[2]
WIDTHS = (40, 80, 120, 200)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "runs" / "tiny"
    path.mkdir(parents=True)
    return path


def page(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", WIDTHS)
def test_a_status_page_cuts_no_sentence_at_any_width(folder, width, capsys, monkeypatch):
    """user 7"""
    drive = written_run(folder)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(folder.parents[1])
    out = page(capsys, "status", "runs/tiny")
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(out.split())
    for life in drive.state.generations:
        assert f"generation {life.generation}" in words
        assert life.reason in words
    assert "runs/tiny" in words
    assert "finished: all 20 steps are done and saved" in words


def test_a_job_is_loaded_from_a_text_or_a_path(tmp_path, monkeypatch):
    """user 9"""
    path = ROOT / "examples" / "tiny.toml"
    (tmp_path / "own.toml").write_text(path.read_text())
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in (path, str(path), "~/own.toml"):
        assert remesh.load_job(named).name == "tiny"
    with pytest.raises(TypeError, match=r"expected str or os.PathLike, not bytes"):
        remesh.load_job(os.fsencode(path))


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_is_over_has_no_workers_and_no_pids(folder, ended, capsys):
    """user 11"""
    written_run(folder, ended=ended)
    told = json.loads(page(capsys, "status", folder, "--json"))
    assert (told["workers"], told["nodes"]) == ([], [])
    words = page(capsys, "status", folder)
    assert "pid" not in words
    assert "idle" not in words


def test_a_moment_of_another_day_has_its_date_and_json_a_zone(folder, capsys):
    """user 14"""
    written_run(folder)
    lines = page(capsys, "events", folder).splitlines()
    assert all(line.startswith("2027-01-1") for line in lines)
    first = json.loads(page(capsys, "events", folder, "--json"))[0]
    assert first["at"].startswith("2027-01-1")
    assert first["at"][-6] in "+-"
    status = json.loads(page(capsys, "status", folder, "--json"))
    assert status["generations"][0]["started"].startswith("2027-01-1")


def test_only_the_first_start_is_called_so():
    """user 15"""
    reasons = {
        "first start": ({}, {"resume": CheckpointState(step=0, name="imported")}),
        "taken up again": ({"resume": CheckpointState(step=10, name="x")},),
        "taken up again, start 2": ({"start": 2},),
        "taken up again, start 3": ({"start": 3, "resume": CheckpointState(step=10, name="x")},),
    }
    for why, starts in reasons.items():
        for options in starts:
            drive = Drive(**options)
            drive.ready()
            assert drive.state.current.reason.endswith(f": {why}")


def test_keys_stand_as_in_the_job_file(capsys):
    """user 22"""
    show_values(Console(width=200, color_system=None), {"model": {"num_kv_heads": 4}})
    assert capsys.readouterr().out.split() == ["model", "num_kv_heads=4"]


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize("phase", ["waiting", "forming", "restoring", "draining", "fencing"])
def test_a_log_says_while_a_run_waits_what_it_waits_for(phase, capsys):
    """inputs B7"""
    clock = Clock()
    display = PlainDisplay(Console(width=80), clock)
    have = 0
    for second in range(241):
        clock.now_s = float(second)
        have = 1 if second >= 100 else 0
        wait = RunWait(text=f"{phase} for workers", have=have, need="4", limit_s=600.0 - second)
        display.show(RunStatus(phase=phase, step=0, steps=80, wait=wait))
    lines = capsys.readouterr().out.splitlines()
    assert 5 <= len(lines) <= 7
    assert f"{phase} for workers: have 0, need 4; at most" in lines[0]
    assert any("have 1, need 4; at most" in line for line in lines[1:3])
