"""`remesh plan`: what it prints of a job's meshes, and that it starts nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remesh.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY, SHARDED = str(EXAMPLES / "tiny.toml"), str(EXAMPLES / "sharded.toml")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def lines(capsys, *arguments):
    assert main(["plan", *arguments]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    return [line.split() for line in out.splitlines()]


def test_every_mesh_is_a_line_with_what_each_worker_does_there(capsys):
    head, *rows = lines(capsys, TINY)
    assert " ".join(head) == "workers mesh shards leaves each efficiency unit memory moves"
    assert rows[:2] == [
        ["1", "dp=1", "1", "12", "100%", "1", "389", "MB"],
        ["2", "dp=2", "1", "6", "100%", "1", "407", "MB", "nothing"],
    ]
    assert rows[3][:4] == ["4", "dp=4", "1", "3"]
    assert " ".join(rows[-1]) == "dp=4: 12 leaves of 1 microbatch, 3 each, 100% efficient"


def test_so_many_workers_get_a_marked_mesh_and_the_rest_is_explained(capsys):
    found = [" ".join(words) for words in lines(capsys, SHARDED, "--workers", "3")]
    assert found[1].startswith("> 2 tp=2 1 2 100% 2 on one node 359 MB")
    assert found[2] == "4 dp=2 tp=2 2 1 100% 2 on one node 362 MB 50%"
    assert "1 worker stays spare: a mesh has whole replicas, 2 workers at a time" in found
    assert "ZeRO stage 3: all replicas share one copy" in found


def test_leaves_that_do_not_come_out_even_show_what_that_costs(capsys):
    rows = lines(capsys, TINY, "--set", "elastic.max_workers=5", "--workers", "5")
    assert rows[5][:8] == [">", "5", "dp=5", "1", "2", "or", "3", "80%"]


def test_the_same_for_a_program(capsys):
    assert main(["plan", SHARDED, "--workers", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [rung["workers"] for rung in found["rungs"]] == [2, 4]
    assert found["rungs"][1]["unit"] == {"workers": 2, "on_one_node": True}
    assert [rung["moves"] for rung in found["rungs"]] == [None, 0.5]
    assert (found["picked_workers"], found["leaves"]) == (4, 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.toml"], "none.toml: no such file"),
        ([TINY, "--set", "parallel.tp=3"], "parallel.tp = 3 does not divide model.num_heads"),
        ([SHARDED, "--workers", "1"], "1 worker is fewer than the 2 of the smallest mesh with"),
        ([TINY, "--workers", "0"], "--workers"),
    ],
)
def test_a_job_that_could_not_run_is_one_line_and_code_2(arguments, text, capsys):
    assert main(["plan", *arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert text in error


def test_neither_torch_nor_ray_is_loaded_and_no_folder_is_made(tmp_path):
    code = (
        "import sys; from remesh.cli.main import main; main(['plan', sys.argv[1]]); "
        "print('loaded:', *sorted({'ray', 'torch', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, TINY], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert list(tmp_path.iterdir()) == []
