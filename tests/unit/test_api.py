"""Runs from Python: what `from remesh import ...` gives, and that the command line calls it."""

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from control_values import record
from jobs_fake import FakeJobs, Head
from written_run import WrittenDrive, written_run

import remesh
from remesh import AttachedRun, SubmittedRun, attach, load_job, runs
from remesh.cli.main import main
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.job.driver_words import is_over
from remesh.orchestrator.job.job import parse_job
from remesh.orchestrator.job.job_text import text_of
from remesh.orchestrator.user_errors import UnreachableError, UserError
from remesh.runs import DistantRun

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
TINY = EXAMPLES[-1]


def submitted(server, job, folder, *overrides, name="first"):
    submission = runs.submission_of(job, overrides=overrides, id=name, folder=folder)
    return runs.submit_to(server, submission)


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, remesh; from remesh import Job, attach, load_job, submit; "
        "print([name for name in ('ray', 'torch', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_is_there_documented_and_typed():
    for name in set(remesh.__all__) - {"__version__"}:
        found = getattr(remesh, name)
        assert inspect.getdoc(found), name
    for function in (remesh.load_job, remesh.attach, AttachedRun.status, AttachedRun.losses):
        assert "return" in get_type_hints(function)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        remesh.nothing  # noqa: B018


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_job_is_the_same_from_its_text(path):
    job = load_job(path, ["train.eps=1e-9", 'data.source="läb \\"x\\""', 'data.skip=["3..5"]'])
    assert parse_job(text_of(job), name="again") == job


def test_a_job_or_its_file_is_submitted_once(tmp_path):
    """user 9"""
    server = FakeJobs()
    value = load_job(TINY, ["train.steps=7"])
    first = submitted(server, str(TINY), tmp_path, "train.steps=7")
    others = [
        submitted(server, TINY, tmp_path, "train.steps=7"),
        submitted(server, value, tmp_path),
    ]
    assert first.begun.new
    assert [(run.id, run.begun.new) for run in others] == [("first", False)] * 2
    assert first.begun.submission.job().train.steps == 7
    assert first.begun.submission.folder == str(tmp_path)
    with pytest.raises(UserError, match=r"train\.steps"):
        submitted(server, load_job(TINY), tmp_path)


def test_a_submission_is_refused_before_anybody_is_asked():
    with pytest.raises(UserError, match="an id has 1 to 63 letters"):
        remesh.submit(TINY, address="127.0.0.1:9", id="a b")
    with pytest.raises(UnreachableError, match="no Ray job server answers"):
        remesh.submit(TINY, address="127.0.0.1:9")


def test_a_submitted_run_is_asked_and_stopped_by_its_id(tmp_path):
    server = FakeJobs()
    run = submitted(server, TINY, tmp_path)
    assert run.status()["status"] in ("pending", "running")
    assert run.attached() == AttachedRun(tmp_path / "runs" / "tiny")
    server.texts["first"] = "Running entrypoint for job first: x\nstep 1/80  loss 5\n"
    assert run.logs() == "step 1/80  loss 5\n"
    server.end("first", "finished")
    heard = []
    assert run.wait(heard.append) == 0
    assert "".join(heard) == "step 1/80  loss 5\n"
    assert run.stop() == "is finished, attempt 1"


def test_a_run_is_attached_by_its_folder_its_job_or_as_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    written_run(folder)
    for target in ("runs/tiny", folder, str(TINY), None):
        status = attach(target).status()
        assert (status["run"], status["phase"], status["step"]) == ("tiny", "finished", 20)
    with pytest.raises(UserError, match="no such run"):
        attach("runs/none")
    with pytest.raises(UserError, match="is a URL and a path is expected"):
        attach("s3://bucket/runs/tiny")


def test_losses_are_those_of_the_steps_that_the_run_stands_on(tmp_path):
    drive = WrittenDrive(tmp_path, steps=80)
    drive.ready()
    drive.train()
    tell(drive, 1, 1.0)
    tell(drive, 2, math.nan)
    drive.lose(drive.members[0])
    drive.park(None)  # back to the beginning
    drive.train()
    tell(drive, 1, 1.0)
    tell(drive, 2, 0.5)
    tell(drive, 3, 0.25)
    run = attach(tmp_path)
    assert run.losses() == [1.0, 0.5, 0.25]
    rows = run.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0].keys() == {"step", "loss", "grad_norm", "lr", "tokens", "step_s", "ended_s"}


def tell(drive, step, loss):
    records = (record(step, loss=loss, ended_s=drive.now_s),)
    drive.all(ev.StepsDone, workers=drive.members[:1], records=records)


def test_a_folder_without_a_run_has_no_losses(tmp_path):
    with pytest.raises(UserError, match="there is no run here"):
        attach(tmp_path).losses()


def test_waiting_ends_with_the_run(tmp_path):
    written_run(tmp_path)
    assert attach(tmp_path).wait(pause=pytest.fail)["phase"] == "finished"


def test_a_run_without_its_controller_is_over_as_far_as_one_can_wait(tmp_path):
    written_run(tmp_path, ended=False)
    assert attach(tmp_path).wait(pause=pytest.fail)["phase"] == "interrupted"
    assert not is_over({"phase": "running", "ended": False})


def test_a_wish_to_a_run_that_is_not_alive_is_refused(tmp_path):
    written_run(tmp_path)
    for wish in (lambda run: run.scale(2), lambda run: run.drain("b")):
        with pytest.raises(UserError, match="no run is alive here"):
            wish(attach(tmp_path))


def test_a_live_run_is_asked_for_other_degrees_from_python_and_from_the_command_line(
    training_run, capsys
):
    assert attach(training_run.path).scale(layout="tp=2,pp=2") == "going over to tp=2,pp=2"
    assert main(["scale", str(training_run.path), "--layout", "auto"]) == 0
    assert capsys.readouterr().out == "going over to auto\n"


def test_beyond_the_network_of_a_cluster_a_run_is_asked_for_other_degrees_by_a_job(training_run):
    run = DistantRun(Head(), training_run.path)
    assert run.scale(layout="ep=2") == "going over to ep=2"


@pytest.mark.parametrize("words", [[], ["--nodes", "2", "--layout", "tp=2"], ["--layout", "tp"]])
def test_one_wish_at_a_time_that_can_be_read_is_wanted(tmp_path, capsys, words):
    written_run(tmp_path)
    assert main(["scale", str(tmp_path), *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "such as tp=2,pp=2" in shown.err


def test_the_command_line_shows_what_python_is_told(tmp_path, capsys):
    written_run(tmp_path)
    assert main(["status", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    told = attach(tmp_path).status()
    assert {key: shown[key] for key in told if key not in ("generations", "last")} == {
        key: value for key, value in told.items() if key not in ("generations", "last")
    }


def test_a_submitted_run_is_shown_without_its_server():
    assert "server" not in repr(SubmittedRun(object(), None))
