"""What is drawn of a run, at every width: the letters themselves."""

import math
from dataclasses import replace

import pytest
from rich.console import Console
from written_run import BEGAN_S, WrittenDrive, written_run

import remesh
from remesh.actors.run.told import progress_of, told_of
from remesh.cli.screen.run_panel import RunPanel
from remesh.cli.screen.said import (
    duration_text,
    iso_text,
    moment_text,
    progress_line,
    share_text,
    speed_text,
    state_text,
    wait_text,
)
from remesh.cli.screen.status_page import MOST_GENERATIONS, MOST_NODES, StatusPage
from remesh.cli.screen.strips import ASCII, FULL, sparkline, timeline
from remesh.orchestrator.accounts.standing import standing_of
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.job.driver_words import GenerationMark, RunStatus, RunWait
from remesh.orchestrator.user_text import count

WIDTHS = range(40, 201, 8)
LOST = (
    "dp=3 from step 700 with the state of rank 0: node 127.0.0.3-8ff720 was lost with worker-1, "
    "worker-5: silent for 0.6 s while its generation ended"
)
STATUS = RunStatus(
    phase="running",
    step=1240,
    steps=2000,
    loss=2.412,
    tokens_per_s=12_400.0,
    layout="dp=3",
    generation=2,
    workers=3,
    run="tiny",
    folder="/home/me/runs/tiny",
    nodes=2,
    spares=1,
    step_s=0.21,
    left_s=432.0,
    goodput=0.975,
    saved_step=1200,
    saved_ago_s=40.0,
    losses=(5.0, 4.0, 3.0, 2.5, 2.412),
    generations=(
        GenerationMark(generation=1, from_step=0, started_s=BEGAN_S, text="dp=4 from step 0"),
        GenerationMark(generation=2, from_step=700, started_s=BEGAN_S, text=LOST),
    ),
)


def drawn(renderable, width):
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def panel(status, width):
    return drawn(RunPanel(status, BEGAN_S), width)


def words(lines):
    return " ".join(" ".join(lines).split())


def test_the_panel_at_80_columns():
    moment = moment_text(BEGAN_S, BEGAN_S)
    assert panel(STATUS, 80) == [
        "tiny  running  step 1,240/2,000  62%  left 7 m 12 s  /home/me/runs/tiny",
        "━" * 49 + "╸",
        "loss 2.4120 █▅▃▁▁  12,400 tokens/s  step 0.21 s  goodput 97%",
        "saved 40 s ago (step 1,200)",
        "mesh dp=3 on 2 nodes  3 workers, 1 spare  generations ▏1────────────▏2─────────▶",
        f"{moment}  generation 1: dp=4 from step 0",
        f"{moment}  generation 2: dp=3 from step 700 with the state of rank 0: node",
        "          127.0.0.3-8ff720 was lost with worker-1, worker-5: silent for 0.6 s",
        "          while its generation ended",
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_the_panel_is_wider_and_no_sentence_is_cut(width):
    """user 7"""
    lines = panel(STATUS, width)
    assert max(map(len, lines)) <= width
    assert f"generation 2: {LOST}" in words(lines)
    for part in ("step 1,240/2,000", "left 7 m 12 s", "goodput 97%", "saved 40 s ago (step 1,200)"):
        assert any(part in line for line in lines)  # in one piece


def test_the_panel_of_a_run_that_waits_says_for_what():
    """inputs B7"""
    wait = RunWait(text="waiting for workers", have=2, need="4 in tp groups of 2", limit_s=600.0)
    lines = panel(RunStatus(phase="waiting", step=0, steps=80, wait=wait), 80)
    assert lines[0] == "waiting  step 0/80  0%"
    assert lines[-1] == (
        "waiting for workers: have 2, need 4 in tp groups of 2; at most 10 m 0 s more"
    )


def test_a_loss_that_is_not_finite_has_its_word_and_its_mark():
    """inputs A1"""
    line = panel(replace(STATUS, loss=math.nan, losses=(5.0, math.nan, 4.0)), 80)[2]
    assert line.startswith("loss not finite █?▁  ")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_page_of_a_run_that_is_alive(tmp_path, width):
    drive = WrittenDrive(tmp_path, steps=20)
    drive.ready()
    drive.train(10)
    view = view_of(drive.controller)
    told = {"folder": "runs/tiny", **told_of(view, standing_of(view, drive.tally))}
    lines = drawn(StatusPage(told, drive.now_s), width)
    assert max(map(len, lines)) <= width
    assert lines[:2] == ["runs/tiny", "running"]
    for said in ("left 2 s", "4 workers on 2 nodes", "node head, the head: used, 2 of 2 places"):
        assert said in words(lines)
    assert "worker-0 (rank 0, pid 1)" in words(lines)


def test_the_page_of_a_large_run_is_still_a_page(tmp_path):
    written_run(tmp_path)
    told = remesh.attach(tmp_path).status()
    node = {"node": "n", "head": False, "state": "used", "workers": 1, "slots": 1}
    told["nodes"] = [node] * (MOST_NODES + 5)
    told["generations"] = told["generations"][:1] * (MOST_GENERATIONS + 3)
    lines = drawn(StatusPage(told, BEGAN_S), 80)
    assert "and 5 nodes more: --json" in lines
    assert "3 earlier generations: --json" in lines
    assert sum(line.startswith("node n: used") for line in lines) == MOST_NODES


def test_colours_are_for_terminals(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = {}
    for name, options in (
        ("terminal", {"force_terminal": True, "color_system": "standard"}),
        ("NO_COLOR", {"force_terminal": True, "color_system": "standard", "no_color": True}),
        ("pipe", {"force_terminal": False}),
    ):
        console = Console(width=80, **options)
        with console.capture() as capture:
            console.print(RunPanel(STATUS, BEGAN_S))
        shown[name] = capture.get()
    assert "\x1b[32m" in shown["terminal"]
    assert "\x1b[3" not in shown["NO_COLOR"]
    assert "\x1b" not in shown["pipe"]


@pytest.mark.parametrize("cells", [1, 5, 32])
def test_a_sparkline_fits_its_cells_and_marks_what_is_not_finite(cells):
    losses = [float(step) for step in range(100)]
    assert len(sparkline(losses, cells)) == cells
    losses[0] = math.inf
    assert sparkline(losses, cells)[0] == FULL.lost
    assert sparkline([], cells) == ""


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([float(level) for level in range(8)], 8) == FULL.levels
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert sparkline([0.0, math.nan, 7.0], 8) == "▁?█"
    assert sparkline([math.nan], 8) == "?"
    assert sparkline([0.0, 7.0], 8, ASCII) == "_#"
    assert sparkline([1e308, -1e308], 8) == "█▁"  # their distance is not finite
    assert sparkline([1e308] * 4 + [1.0] * 4, 2) == "?▁"  # nor is this sum
    assert sparkline([math.inf, -math.inf], 1) == "?"


def test_a_timeline_shows_where_generations_began():
    marks = [replace(STATUS.generations[0], generation=n, from_step=100 * n) for n in (1, 2, 3)]
    assert timeline(marks, 400, 16) == "▏1───▏2───▏3───▶"
    assert timeline(marks, 400, 16, ASCII) == "|1---|2---|3--->"
    assert timeline(marks, 400, 8) == "▏1▏2▏3─▶"
    assert timeline(marks[:1], 100, 8) == "▏1─────▶"
    assert timeline([], 0, 8) == ""
    crowd = [replace(marks[0], generation=n, from_step=n) for n in range(10, 60)]
    assert len(timeline(crowd, 60, 12)) == 12


def test_durations_are_said_in_two_units():
    said = {0.0: "0 s", 0.207: "0.21 s", 3.44: "3.4 s", 40.4: "40 s", 432: "7 m 12 s"}
    said |= {59.9: "1 m 0 s", 3900: "1 h 5 m", 190_000: "2 d 4 h", math.inf: "not finite"}
    assert {length_s: duration_text(length_s) for length_s in said} == said


def test_numbers_are_said_as_people_read_them():
    said = [count(n, "worker") for n in (0, 1, 1200)]
    assert said == ["0 workers", "1 worker", "1,200 workers"]
    assert [share_text(*pair) for pair in ((999, 1000), (1000, 1000), (0, 0))] == [
        "99%",
        "100%",
        "100%",
    ]
    assert [speed_text(n) for n in (7839.4, 2.5e6)] == ["7,839 tokens/s", "2.5M tokens/s"]
    assert wait_text(RunWait(text="x", have=1, need="2")) == "x: have 1, need 2"


def test_no_state_has_its_inner_name():
    inner = {Phase.DRAINING, Phase.FENCING, Phase.FORMING, Phase.RESTORING}
    for phase in Phase:
        assert (state_text(phase) == phase) == (phase not in inner)


def test_a_moment_has_its_date_unless_it_is_today():
    """user 14"""
    today, tomorrow = moment_text(BEGAN_S, BEGAN_S), moment_text(BEGAN_S, BEGAN_S + 86_400)
    assert tomorrow.endswith(today)
    assert (len(today), len(tomorrow)) == (8, 19)
    assert iso_text(BEGAN_S)[:10] == tomorrow[:10]


def test_the_progress_line_tells_all_it_knows():
    assert progress_line(STATUS) == (
        "step 1,240/2,000  loss 2.4120  12,400 tokens/s  left 7 m 12 s  dp=3  generation 2  "
        "3 workers  running"
    )
    assert progress_line(RunStatus(phase="FORMING", step=0, steps=80, workers=1)) == (
        "step 0/80  generation 0  1 worker  forming a mesh"
    )


def test_a_driver_is_told_a_few_generations_however_many_there_were(tmp_path):
    drive = written_run(tmp_path)
    drive.state.generations *= 40
    view = view_of(drive.controller)
    status = progress_of(view, standing_of(view, drive.tally), drive.now_s)
    assert len(status.generations) == 32
