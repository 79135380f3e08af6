"""Jobs submitted to a real head: started once, followed to their end, stopped, resumed."""

import json
import os
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psutil
import pytest
from place import SHORT, Place, until
from way import Way

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.jobs import cluster_jobs as jobs
from remesh.actors.jobs.job_logs import follow
from remesh.actors.jobs.job_server import JobServer
from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.run_report import report_of
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.job.submission import Submission

STEPS = 240  # the job must still run when its followers have come and gone
LIMITS = (1000, 2000, 3000)  # bytes of answers, each fewer than a log of a thousand lines has


@pytest.fixture(scope="module")
def head():
    cluster = LocalCluster.start(nodes=1, workers_per_node=3, job_server=True)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def job_place(head, tmp_path_factory):
    """A working folder whose commands reach the head's job server."""
    environment = {**head.environment(), "RAY_API_SERVER_ADDRESS": head.job_server}
    return Place(tmp_path_factory.mktemp("jobs"), environment)


@pytest.fixture(scope="module")
def server(head):
    return until(lambda: reached(head), "the job server")


def reached(head):
    with socket.socket() as probe:
        host, _, port = head.job_server.removeprefix("http://").partition(":")
        if probe.connect_ex((host, int(port))):
            return None
    return JobServer(head.job_server, {"Authorization": f"Bearer {head.token}"})


def run_dir(name):
    settings = f"checkpoint.dir=runs/{name}", f"train.steps={STEPS}", "elastic.patience_s=60"
    return [word for setting in settings for word in ("--set", setting)]


def report(place, name):
    job = load_job(SHORT, [f"data.dir={place.root}/runs/data/python-stdlib-64"])
    return report_of(RunFolder(place.root / "runs" / name), job, status="")


def step_of(place, name):
    status = status_of(place, name)
    return status["step"] if status else 0


def status_of(place, name):
    contact = contact_of(place, name)
    return contact and ask(contact, "/status")


@contextmanager
def held(place, name):
    """Makes no step meanwhile, so that it does not end: for less than the patience."""
    status = until(lambda: status_of(place, name), "an answer")
    rank = next(one["pid"] for one in status["workers"] if one["rank"] == 0)
    stopped = [agent_of(rank), rank]  # the agent first, which would tell of it
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def agent_of(rank):
    session = os.getsid(rank)
    names = {one.pid: one.info["name"] for one in psutil.process_iter(["name"])}
    agents = [pid for pid, name in names.items() if name.startswith("ray::Agent")]
    (mine,) = [pid for pid in agents if os.getsid(pid) == session]
    return mine


def ended(server, ray_id):
    job = jobs.find_ray_job(server, ray_id)
    return job if job.ended else None


def contact_of(place, name):
    return RunFolder(place.root / "runs" / name).contact()


def drivers():
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[-2:] == ["remesh.cli", "drive"]
    ]


@pytest.fixture(scope="module")
def tossed(job_place, server):
    """The report of a job that is stopped, resumed, loses its driver and is taken up.

    And how the last command to wait for it has ended.
    """
    submit = ("submit", SHORT, "--id", "tossed", *run_dir("tossed"))
    assert job_place.remesh(*submit).code == 0
    follower = job_place.start("logs", "tossed", "-f")
    until(lambda: step_of(job_place, "tossed") >= 5, "step 5")
    follower.kill()
    follower.wait()
    attached = job_place.start(*submit, "--wait")
    assert attached.stdout.readline()
    attached.send_signal(signal.SIGINT)
    left = job_place.finish(attached)
    assert left.code == 130
    assert "tossed is running" in left.err
    assert "the job goes on" in left.err
    stopped = job_place.remesh("stop", "tossed")
    saved_at = int(re.search(r"saved at step (\d+)", stopped.err)[1])
    assert stopped.code == 0
    assert job_place.remesh("logs", "tossed", "-f").code == 143

    assert "attempt 2" in job_place.remesh("resume", "tossed").err
    contact = until(lambda: contact_of(job_place, "tossed"), "the controller")
    until(lambda: step_of(job_place, "tossed") > saved_at, "a step after it was resumed")
    with held(job_place, "tossed"):
        (driver,) = drivers()
        driver.kill()
        lost = until(lambda: ended(server, "tossed.2"), "the end of the job without a driver")
        assert (lost.status, lost.code) == ("failed", 3)
        taken_up = jobs.resume(server, "tossed")
        assert contact_of(job_place, "tossed") == contact
        assert taken_up.new
    last = job_place.remesh(*submit, "--wait")
    return report(job_place, "tossed"), last


def test_stopped_resumed_and_taken_up_it_trains_the_same_curve(tossed, job_place, curve):
    trained, last = tossed
    assert last.code == 0
    assert f"finished at step {STEPS}" in last.out
    assert "Running entrypoint" not in last.out
    assert len(trained["losses"]) == STEPS
    curve.assert_same_bits(trained)
    assert len(trained["generations"]) == 2  # one for each controller, none for the second driver
    rows = {row["id"]: row for row in json.loads(job_place.remesh("ls", "--json").out)}
    assert (rows["tossed"]["status"], rows["tossed"]["attempt"]) == ("finished", 3)
    assert rows["tossed"]["step"] == STEPS
    assert "already" not in rows["tossed"]["reason"]  # it was followed, not found finished


@pytest.mark.usefixtures("tossed")
def test_an_id_with_another_config_is_refused_and_says_what_differs(job_place):
    submit = ("submit", SHORT, "--id", "tossed", *run_dir("tossed"))
    other = job_place.remesh(*submit, "--set", "job.seed=8")
    assert other.code == 2
    assert "job.seed was 7 and is 8" in other.err
    same = job_place.remesh(*submit, "--wait")
    assert same.code == 0
    assert "tossed is finished" in same.err


def test_what_can_never_run_is_refused(job_place, server):
    until(lambda: server.room() is not None, "the cluster's status")
    wide = job_place.remesh("submit", SHORT, "--id", "wide", "--set", "elastic.max_workers=4",
                            "--set", "elastic.min_workers=4")  # fmt: skip
    assert wide.code == 2
    assert "elastic.min_workers = 4 and the cluster has room for 3" in wide.err
    assert "wide" not in [attempt.submission.id for attempt in jobs.attempts(server)]


def test_a_failing_job_is_started_once_and_everybody_exits_with_its_code(job_place, server):
    args = ("--set", "data.dir=nowhere", "--set", 'data.source=it\'s; $HOME/"ünï" {}')
    submission = Submission(
        id="failing",
        text=SHORT.read_text(),
        source=str(SHORT),
        overrides=args[1::2],
        folder=str(job_place.root),
    )
    with ThreadPoolExecutor(10) as pool:
        attempts = list(pool.map(lambda _: jobs.submit(server, submission), range(10)))
    assert sum(attempt.new for attempt in attempts) == 1
    outcomes = [
        job_place.remesh("submit", SHORT, "--id", "failing", *args, "--wait"),
        job_place.remesh("logs", "failing", "-f"),
    ]
    assert [outcome.code for outcome in outcomes] == [2, 2]
    source = f'{job_place.root}/it\'s; $HOME/"ünï" {{}}'
    assert all(f"no source {source}" in outcome.out for outcome in outcomes)
    mine = [job for job in server.list() if job.ray_id.startswith("failing")]
    assert len(mine) == 1
    (row,) = [r for r in json.loads(job_place.remesh("ls", "--json").out) if r["id"] == "failing"]
    assert (row["status"], row["step"]) == ("failed", None)
    assert source in row["reason"]


def test_a_run_inside_of_a_job_is_refused_with_the_address_of_its_cluster(head, server):
    """inputs B8"""
    command = f"{sys.executable} -m remesh.cli run {SHORT}"
    server._call("POST", "/api/jobs/", {"entrypoint": command, "submission_id": "inner"})
    job = until(lambda: ended(server, "inner"), "the end of the job")
    assert job.code == 2
    told = server.logs("inner")
    assert f"remesh: this is a job of the Ray cluster at {head.address}, and a run " in told
    assert f"add --address {head.address}, or" in told


def test_a_log_is_followed_across_cut_connections(head, server):
    """The log is longer than each of them, and there is no end before all of it has come."""
    count = f"{sys.executable} -c '[print(n, flush=1) or sleep(0.004) for n in range(1, 1001)]'"
    entry = count.replace("[print", "from time import sleep; [print")
    server._call("POST", "/api/jobs/", {"entrypoint": entry, "submission_id": "counting"})
    told = []
    with closing(Way(head.job_server.removeprefix("http://"), limits=LIMITS)) as way:
        through = JobServer(f"http://{way.address}", server._headers)
        job = follow(through, "counting", told.append)
    assert job.code == 0
    counted = [int(line) for line in "".join(told).splitlines() if line.isdigit()]
    assert counted == list(range(1, 1001))
    assert way.limits == []


def test_an_unreachable_head_and_a_missing_token_are_told_apart(job_place, head):
    nobody = job_place.remesh("ls", "--address", "http://127.0.0.1:9")
    assert nobody.code == 4
    assert len(nobody.err.splitlines()) == 1
    stranger = Place(job_place.root, {"RAY_AUTH_TOKEN": "0" * 32, "RAY_AUTH_MODE": "token"})
    refused = stranger.remesh("ls", "--address", head.job_server)
    assert refused.code == 2
    assert "RAY_AUTH_TOKEN" in refused.err
    assert job_place.remesh("logs", "nobody").code == 2
