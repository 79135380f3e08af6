import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from jobs_fake import FakeJobs

from remesh.actors.jobs import cluster_jobs as jobs
from remesh.actors.jobs.cluster_jobs import RayJob
from remesh.actors.jobs.entry_point import ENTRY_POINT, JOB_CONFIG, own_submission
from remesh.actors.jobs.job_server import JobServer, room_of
from remesh.actors.jobs.submit import driver_lease_s
from remesh.cli.job_actions import job_rows
from remesh.cli.log_commands import refuse_if_submitted
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.job.submission import (
    KEY,
    Submission,
    check_id,
    id_stem,
    read_metadata,
    submission_difference,
)
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError
from remesh.runs import submission_of

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
ARGUMENTS = ("a b", "it's", '{"k": [1]}', "a;b", "$HOME", "ünï", "", 'x > "y" | z\n')
NO_WAIT = {"wait": lambda _: None}


def submission(submission_id="first", *overrides, attempt=1, folder="/home/me"):
    return Submission(
        id=submission_id,
        attempt=attempt,
        text=TINY.read_text(),
        source="tiny.toml",
        overrides=overrides,
        folder=folder,
    )


def status_of_a_cluster(*type_names, cpus=(2.0, 2.0)):
    return {
        "data": {
            "clusterStatus": {
                "autoscalerReport": {"nodeTypeMapping": dict(enumerate(type_names))},
                "loadMetricsReport": {
                    "usageByNode": {str(n): {"CPU": [0.0, cpu]} for n, cpu in enumerate(cpus)}
                },
            }
        }
    }


def entered(environment):
    """What comes of the entry point's line where there is only this environment."""
    command = ["/bin/sh", "-c", ENTRY_POINT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_arguments_arrive_as_they_were_given(monkeypatch):
    sent = replace(submission(), overrides=ARGUMENTS)
    config = {"metadata": {KEY: json.dumps(asdict(sent), ensure_ascii=False)}}
    monkeypatch.setenv(JOB_CONFIG, json.dumps(config))
    assert own_submission() == sent


def test_relative_folders_count_from_where_the_command_ran():
    there = submission("a", "data.source=texts", "data.dir=/data/x").job()
    assert there.data.source == "/home/me/texts"
    assert there.data.dir == "/data/x"
    assert str(there.run_dir) == "/home/me/runs/tiny"
    assert submission().job().data.source == "python-stdlib"


def test_a_job_file_that_is_too_large_to_travel_is_refused():
    large = replace(submission(), text=submission().text + "#" * 100_000)
    with pytest.raises(UserError, match="a submission has at most 98304"):
        large.metadata()


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"remesh": "x"}, {"remesh": "{}"}, {"remesh": "3"}, {"remesh": "[" * 90_000}],
)
def test_jobs_of_others_are_left_alone(metadata):
    assert read_metadata(metadata) is None


@pytest.mark.parametrize("text", ["", "my run/1", "a.2", "-a", "ü", "a" * 64])
def test_an_id_that_cannot_be_one_is_refused_with_the_rule(text):
    with pytest.raises(UserError, match="1 to 63 letters, digits, '-' and '_'"):
        check_id(text)


def test_an_id_is_made_from_the_name():
    made = submission_of(TINY, folder=Path("/x")).id
    assert made.startswith("tiny-")
    assert check_id(made) == made
    assert check_id(id_stem("a." * 32)) == "a-" * 24


def test_an_id_given_twice_attaches():
    server = FakeJobs()
    first = jobs.submit(server, submission())
    second = jobs.submit(server, submission())
    assert (first.new, second.new, server.submits) == (True, False, 1)


def test_an_id_with_another_config_is_refused_and_says_what_differs():
    server = FakeJobs()
    jobs.submit(server, submission())
    with pytest.raises(UserError, match=r"train\.steps was 80 and is 90.*another --id"):
        jobs.submit(server, submission("first", "train.steps=90"))


def test_the_same_config_written_otherwise_is_the_same():
    other = replace(submission("first", "train.steps=80"), text="# mine\n" + TINY.read_text())
    assert submission_difference(submission(), other) is None
    moved = submission(folder="/elsewhere")
    assert "checkpoint.dir was /home/me/runs/tiny" in submission_difference(submission(), moved)


def test_a_lost_reply_starts_no_second_job():
    server = FakeJobs()
    server.replies_lost = 1
    assert jobs.submit(server, submission(), **NO_WAIT).job.status == "running"
    assert (server.submits, len(server.jobs)) == (1, 1)


def test_a_lost_request_is_sent_again_under_the_same_id():
    server = FakeJobs()
    server.requests_lost = 2
    assert jobs.submit(server, submission(), **NO_WAIT).new
    assert len(server.jobs) == 1


def test_a_head_that_stays_away_is_unreachable():
    server = FakeJobs()
    server.requests_lost = 9
    with pytest.raises(UnreachableError):
        jobs.submit(server, submission(), **NO_WAIT)
    assert server.submits == 3


def test_an_id_of_a_job_that_is_not_ours_is_an_error():
    server = FakeJobs()
    server.submit("first", {})
    with pytest.raises(RemeshError, match="already exists"):
        jobs.submit(server, submission(), **NO_WAIT)


def test_resume_is_a_new_attempt_at_the_same_job():
    server = FakeJobs()
    jobs.submit(server, submission("first", *("train.steps=90",)))
    assert not jobs.resume(server, "first").new
    server.end("first", "stopped")
    again = jobs.resume(server, "first")
    assert (again.new, again.job.ray_id) == (True, "first.2")
    assert again.submission.overrides == ("train.steps=90",)
    server.end("first.2", "finished")
    assert not jobs.resume(server, "first").new
    assert [each.submission.attempt for each in jobs.attempts(server)] == [2]


def test_two_that_resume_at_once_start_one_attempt():
    server = FakeJobs()
    jobs.submit(server, submission())
    server.end("first", "failed")
    before = dict(server.jobs)
    jobs.resume(server, "first")
    late = FakeJobs()
    late.jobs = before

    def refused(*_):
        late.jobs = server.jobs
        raise RemeshError("already exists")

    late.submit = refused
    assert not jobs.resume(late, "first").new


def test_stop_waits_for_the_end_and_a_job_that_has_ended_is_left_alone():
    server = FakeJobs()
    jobs.submit(server, submission())
    assert jobs.stop(server, "first", **NO_WAIT).job.status == "stopped"
    server.end("first", "finished")
    assert jobs.stop(server, "first", **NO_WAIT).job.status == "finished"


def test_a_job_that_does_not_stop_is_given_up():
    server = FakeJobs()
    jobs.submit(server, submission())
    server.stop = lambda _: None
    with pytest.raises(RemeshError, match="first did not stop within 130 s"):
        jobs.stop(server, "first", **NO_WAIT)


def test_an_unknown_id_is_told_with_those_there_are():
    server = FakeJobs()
    jobs.submit(server, submission())
    with pytest.raises(UserError, match="no job second on this cluster; there are: first"):
        jobs.find(server, "second")


@pytest.mark.parametrize(
    ("status", "driver", "code"),
    [
        ("finished", 0, 0),
        ("failed", 2, 2),
        ("failed", 3, 3),
        ("failed", 4, 4),
        ("failed", 143, 143),
        ("failed", 1, 3),
        ("failed", -9, 3),
        ("failed", None, 3),
        ("stopped", None, 143),
    ],
)
def test_whoever_waited_exits_with_the_code_of_the_job(status, driver, code):
    assert RayJob(ray_id="a", status=status, exit_code=driver).code == code


def test_more_workers_than_the_cluster_can_ever_have_are_refused_before_anything_starts():
    server = FakeJobs(room=3)
    with pytest.raises(UserError, match="min_workers = 4 and the cluster has room for 3"):
        jobs.submit(server, submission("wide", "elastic.min_workers=4"))
    assert not server.jobs
    assert jobs.submit(FakeJobs(room=4), submission("wide", "elastic.min_workers=4")).new


def test_the_room_is_only_known_where_nothing_adds_nodes():
    fixed = [f"node_{digit * 56}" for digit in "0f"]
    assert room_of(status_of_a_cluster(*fixed, cpus=(2.0, 3.5))) == 5
    assert room_of(status_of_a_cluster("headgroup", "workers")) is None
    assert room_of(status_of_a_cluster()) is None
    assert room_of({"data": {"clusterStatus": None}}) is None


def test_a_list_of_jobs_says_where_each_stands_and_why():
    server = FakeJobs()
    for name in ("done", "bad", "busy"):
        jobs.submit(server, submission(name))
    server.texts["done"] = "> building\nstep 70/80  loss 2\n> finished at step 80, loss 2: all\n"
    server.end("done", "finished")
    server.end("bad", "failed", message="Job failed:\nremesh: no data in x\n", exit_code=2)
    server.texts["busy"] = "> generation 1\nstep 10/80  loss 5\nstep 20/80  loss 4\n"
    rows = {row["id"]: (row["status"], row["step"], row["reason"]) for row in job_rows(server)}
    assert rows == {
        "done": ("finished", 80, "finished at step 80, loss 2: all"),
        "bad": ("failed", None, "no data in x"),
        "busy": ("running", 20, "generation 1"),
    }


def test_a_driver_knows_its_submission_and_leaves_workers_without_an_environment(monkeypatch):
    config = {"metadata": submission().metadata(), "runtime_env": {"env_vars": {"A": "1"}}}
    monkeypatch.setenv(JOB_CONFIG, json.dumps(config))
    assert own_submission() == submission()
    assert json.loads(os.environ[JOB_CONFIG]) == {**config, "runtime_env": {}}


@pytest.mark.parametrize("config", ["{}", "", "[]", "[1]", "7", "x", "[" * 90_000])
def test_a_driver_without_a_submission_says_what_to_use(monkeypatch, config):
    """security D4: what stood there was parsed without a bound."""
    monkeypatch.setenv(JOB_CONFIG, config)
    with pytest.raises(RemeshError, match="remesh submit JOB"):
        own_submission()


def test_a_submitted_run_outlives_its_driver_for_half_an_hour_an_attached_one_for_40_patiences():
    job = load_job(TINY)
    assert driver_lease_s(job, RunOptions(submission="first")) == 1800
    assert driver_lease_s(job, RunOptions()) == 20


def test_a_head_without_remesh_says_so():
    tools = {"PATH": "/nowhere", "REMESH_PYTHON": "/bin/false"}
    done = entered(tools)
    assert done.returncode == 2
    assert "not installed on the head" in done.stderr


def test_the_entry_point_takes_the_interpreter_that_is_named(tmp_path):
    python = tmp_path / "my python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$@"\n')
    python.chmod(0o755)
    tools = {"PATH": "/usr/bin:/bin", "REMESH_PYTHON": str(python)}
    done = entered(tools)
    assert (done.returncode, done.stdout) == (0, "-m remesh.cli drive\n")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ray://head:10001", "http://"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="expected http://HOST:8265"):
        JobServer.reach(address)


def test_where_nobody_listens_is_unreachable():
    with pytest.raises(UnreachableError, match=r"no Ray job server answers at http://127\.0\.0\.1"):
        JobServer.reach("127.0.0.1:9")


def test_logs_of_a_name_that_a_run_and_a_submission_have_are_refused_with_the_choices():
    """User 12: one command shows the logs of both."""
    server = FakeJobs()
    refuse_if_submitted(server, "first", "http://h:8265")
    jobs.submit(server, submission())
    refuse_if_submitted(server, "second", "http://h:8265")
    with pytest.raises(UserError, match=r"write \./first for the run, or --driver first"):
        refuse_if_submitted(server, "first", "http://h:8265")
