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
    assert " ".join(head) == "workers mesh shards leaves each efficiency sent unit memory moves"
    assert rows[:2] == [
        ["1", "dp=1", "1", "12", "100%", "1", "408", "MB"],
        ["2", "dp=2", "1", "6", "100%", "1.0x", "1", "399", "MB", "nothing"],
    ]
    assert rows[2][5] == "1.5x"
    assert rows[3][:6] == ["4", "dp=4", "1", "3", "100%", "1.0x"]
    assert " ".join(rows[-1]) == "dp=4: 12 leaves of 1 microbatch, 3 each, 100% efficient"


def test_so_many_workers_get_a_marked_mesh_and_the_rest_is_explained(capsys):
    found = [" ".join(words) for words in lines(capsys, SHARDED, "--workers", "3")]
    assert found[1].startswith("> 2 tp=2 1 2 100% 2 on one node 367 MB")
    assert found[2] == "4 dp=2 tp=2 2 1 100% 1.0x 2 on one node 366 MB 50%"
    assert "1 worker stays spare: a mesh has whole replicas, 2 workers at a time" in found
    assert "ZeRO stage 3: all replicas share one copy" in found


def test_pipelines_show_their_schedule_and_how_much_they_idle(capsys):
    piped = ("parallel.pp=2", "parallel.schedule=interleaved", "elastic.pp=[1]")
    sets = [word for setting in piped for word in ("--set", setting)]
    head, *found = (" ".join(words) for words in lines(capsys, TINY, *sets, "--workers", "4"))
    assert head.startswith("workers mesh schedule shards leaves each")
    assert found[0].startswith("1 dp=1 1 12 100%")
    assert found[1].startswith("2 pp=2 interleaved 1 12 100%")
    assert found[4].startswith("> 4 dp=2 pp=2 interleaved 1 6 100%")
    assert "pp=2: interleaved, 4 stages of 1 layer each, on 2 workers" in found
    [idle] = [line for line in found if "idles" in line]
    assert idle.endswith("100% efficient; interleaved idles 8% of the time on even stages")


def test_leaves_that_do_not_come_out_even_show_what_that_costs(capsys):
    rows = lines(capsys, TINY, "--set", "elastic.max_workers=5", "--workers", "5")
    assert rows[5][:8] == [">", "5", "dp=5", "1", "2", "or", "3", "80%"]


def test_what_a_worker_sends_is_told_of_every_mesh(capsys):
    """The tree's nodes, where segments are uneven too; leaves where they are streamed."""
    sent = {}
    for name, keys in {
        "uneven": ("train.global_batch=26", "elastic.max_workers=4"),
        "streamed": ("zero.stage=2",),
        "plain": ("elastic.same_bits=false",),
    }.items():
        sets = [word for key in keys for word in ("--set", key)]
        assert main(["plan", TINY, *sets, "--json"]) == 0
        sent[name] = [rung["sent"] for rung in json.loads(capsys.readouterr().out)["rungs"]]
    assert sent == {
        "uneven": [None, 1.0, 1.5, 1.0],
        "streamed": [None, 3.5, 2.5, 2.0],
        "plain": [None, 1.0, 1.0, 1.0],
    }


def test_the_same_for_a_program(capsys):
    assert main(["plan", SHARDED, "--workers", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [rung["workers"] for rung in found["rungs"]] == [2, 4]
    assert found["rungs"][1]["unit"] == {"workers": 2, "on_one_node": True}
    assert [rung["moves"] for rung in found["rungs"]] == [None, 0.5]
    assert [rung["layers"] for rung in found["rungs"]] == [[4], [4]]
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


ZB_H1 = """\
rank 0 F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
rank 1 .. F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
rank 2 .. .. F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
rank 3 .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
F forward, I its half for the input, W its half for the weights, = going on, . idle
idle: 3 of 21 units of time, 14.3% of all ranks' time
in flight: 4 at the most, each the activations of a pass
microbatches of a replica: any number for zb-h1
"""


def drawn(capsys, *arguments):
    assert main(["plan", "--schedule", *arguments]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    return out


def test_a_schedule_is_drawn_with_what_it_idles_and_keeps(capsys):
    assert drawn(capsys, "zb-h1", "--pp", "4", "--microbatches", "6") == ZB_H1


def test_four_ranks_with_eight_microbatches_are_drawn_unless_something_else_is_asked(capsys):
    for name in ("gpipe", "1f1b"):
        text = drawn(capsys, name, "--costs", "1,1,0")
        assert "idle: 6 of 22 units of time, 27.3% of all ranks' time" in text
    assert "in flight: 4, 3, 2, 1 at the most" in text
    assert text.splitlines()[3].startswith("rank 3 .. .. .. F0 B0 F1 B1")
    assert "idle: 9 of 33 units" in drawn(capsys, "1f1b")


def test_stages_of_a_rank_are_told_apart_and_bands_fit_the_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = drawn(capsys, "interleaved", "--pp", "2", "--microbatches", "2", "--virtual-stages", "3")
    rows = text.splitlines()
    assert max(len(row) for row in rows[:5]) <= 60
    assert rows[2] == ""
    assert rows[0].split()[:9] == ["rank", "0", "F0a", "F1a", "F0b", "F1b", "F0c", "F1c", "..."]
    assert "a to c the stages of a rank" in text
    assert "activations of a pass through 1/3 of a rank's layers" in text
    assert "microbatches of a replica: multiples of 2 for interleaved" in text


def test_where_a_schedule_is_not_legal_the_plain_one_is_drawn_and_the_reason_said(capsys):
    first, *rest = drawn(capsys, "dualpipe-v", "--microbatches", "6").splitlines()
    assert first.startswith("1f1b instead of dualpipe-v: a pipeline of 8 stages needs as many")
    assert rest[-2:] == [
        "microbatches of a replica: 8 or more for dualpipe-v",
        "microbatches of a replica: any number for 1f1b",
    ]
    assert "one rank has nobody to wait for" in drawn(capsys, "gpipe", "--pp", "1")


def test_what_nothing_trains_by_says_so_and_how_many_versions_it_keeps(capsys):
    rows = drawn(capsys, "2bw", "--microbatches", "16", "--costs", "1,1,0").splitlines()
    assert "idle: 6 of 38 units of time, 15.8% of all ranks' time" in rows
    assert rows[-2:] == [
        "weights: 2 at the most, each a version",
        "a plan only: nothing trains by it yet",
    ]
    assert "weights: 4, 3, 2, 1 at the most" in drawn(capsys, "pipedream")


def test_a_program_gets_every_operation_with_its_times(capsys):
    found = json.loads(drawn(capsys, "1f1b", "--pp", "2", "--microbatches", "3", "--json"))
    assert (found["schedule"], found["reason"], found["bubble"]) == ("1f1b", None, 0.25)
    assert [rank["idle"] for rank in found["ranks"]] == [3, 3]
    assert [rank["in_flight"] for rank in found["ranks"]] == [2, 1]
    first = found["ranks"][1]["operations"][1]
    assert (first["start"], first["end"]) == (1, 2)
    assert first["operation"].startswith("Forward(microbatch=0, stage=1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "there is nothing to plan; name a job file, or a --schedule to draw"),
        (["--pp", "4"], "--pp is for a schedule; add --schedule NAME"),
        ([TINY, "--schedule", "1f1b"], "draws a pipeline of its own; leave out JOB"),
        (["--schedule", "1f1b", "--workers", "2"], "draws a pipeline of its own; leave out --wor"),
        (["--schedule", "afab"], "--schedule afab is unknown; use one of gpipe, 1f1b, interleav"),
        (["--schedule", "1f1b", "--virtual-stages", "2"], "is for interleaved, not for 1f1b"),
        (["--schedule", "1f1b", "--costs", "1,x"], "--costs 1,x is not understood; use three wh"),
        (
            ["--schedule", "1f1b", "--costs", "0,1,1"],
            "with --costs 0,1,1 a pass takes no time; only",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(capsys, arguments, text):
    assert main(["plan", *arguments]) == 2
    assert text in capsys.readouterr().err
