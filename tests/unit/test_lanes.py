"""Tiers of tests that run side by side: all is told, and what fails fails the whole."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import lanes
import pytest

WELL, BADLY = "print('well')", "import sys; print('badly'); sys.exit(3)"


def side_by_side(*programs):
    commands = [shlex.join([sys.executable, "-c", program]) for program in programs]
    return subprocess.run(
        [sys.executable, lanes.__file__, *commands], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("programs", "code"),
    [((WELL, WELL), 0), ((BADLY, WELL), 1), ((WELL, BADLY), 1), ((WELL, BADLY, WELL), 1)],
)
def test_all_is_told_and_what_fails_fails_the_whole(programs, code):
    done = side_by_side(*programs)
    assert done.returncode == code
    assert len(done.stdout.split()) == len(programs)


def test_the_others_begin_before_the_first_has_ended(tmp_path):
    there = tmp_path / "there"
    os.mkfifo(there)
    done = side_by_side(f"open({str(there)!r}).read()", f"open({str(there)!r}, 'w')")
    assert done.returncode == 0


def test_what_has_ended_is_told_while_the_first_goes_on(tmp_path):
    there = tmp_path / "there"
    os.mkfifo(there)
    commands = [f"open({str(there)!r}).read()", WELL]
    argv = [shlex.join([sys.executable, "-c", program]) for program in commands]
    with subprocess.Popen(
        [sys.executable, lanes.__file__, *argv], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "well\n"
        there.write_text("")
    assert process.returncode == 0


def test_the_first_has_the_right_of_way():
    programs = [f"import os; print({lane!r}, os.nice(0))" for lane in ("first", "second")]
    lines = side_by_side(*programs).stdout.splitlines()
    niceness = {lane: int(nice) for lane, nice in map(str.split, lines)}  # in any order
    assert niceness["second"] > niceness["first"] or niceness["second"] == 19


def test_make_test_runs_every_tier():
    made = (Path(lanes.__file__).parents[2] / "Makefile").read_text()
    recipe = made.partition("\ntest:")[2].partition("\n\n")[0]
    assert {"cluster", "check", "dist"} <= set(recipe.replace('"', " ").split())
