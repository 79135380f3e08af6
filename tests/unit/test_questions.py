"""Questions to runs that go as a small job, from beyond the cluster's network."""

import json

import pytest
from jobs_fake import FakeJobs, Head
from test_jobs_submitted import submission

from remesh.actors.jobs.questions import (
    MARK,
    Question,
    ask_by_job,
    metadata_of,
    read_questions,
)
from remesh.actors.run.reach import Gone, Reached
from remesh.cli.job_actions import job_rows
from remesh.orchestrator.job.submission import read_metadata
from remesh.orchestrator.user_errors import UnreachableError, UserError


def question(run, path="/status", **more):
    return Question(run_dir=str(run), path=path, **more)


def test_a_run_is_asked_where_it_is_and_its_answer_comes_back(training_run, tmp_path):
    """user 3: from beyond the cluster's network, in one job however many runs."""
    head = Head()
    questions = [question(training_run.path), question(tmp_path / "none")]
    found, none = ask_by_job(head, questions, print, wait=lambda _: None)
    assert isinstance(found, Reached)
    assert found.answer["step"] == 7
    assert isinstance(none, Gone)
    assert (head.submits, head.jobs) == (1, {})


def test_a_wish_is_passed_on_and_its_refusal_comes_back(training_run):
    """user 3"""
    head = Head()
    (told,) = ask_by_job(head, [question(training_run.path, "/stop", wish={})], print)
    assert told.answer == {"text": "stopping at the next step boundary"}
    with pytest.raises(UserError, match="no such node"):
        ask_by_job(head, [question(training_run.path, "/drain", wish={"node": "x"})], print)


@pytest.mark.parametrize("head", [Head(ending="failed", cut=True), Head(cut=True)])
def test_a_job_without_an_answer_is_no_answer(head, tmp_path):
    """user 3"""
    with pytest.raises(UnreachableError, match="has not brought an answer"):
        ask_by_job(head, [question(tmp_path)], print, wait=lambda _: None)


def test_a_job_with_fewer_answers_than_questions_is_no_answer():
    """user 3"""
    head = FakeJobs()
    head.logs = lambda _: f"{MARK}[]\n"
    with pytest.raises(UnreachableError, match="has not brought an answer"):
        ask_by_job(head, [question("x")], print, wait=lambda _: None)


def test_jobs_that_ask_are_no_submissions(tmp_path):
    """user 2: `remesh ls` shows those of the user."""
    sent = [question(tmp_path, "/scale", wish={"nodes": 2})]
    metadata = metadata_of(sent)
    assert read_questions(metadata) == sent
    assert read_metadata(metadata) is None
    assert all(isinstance(value, str) for value in metadata.values())
    for other in (submission().metadata(), {}, {"remesh_questions": "x"}):
        assert read_questions(other) is None


def test_a_list_of_jobs_says_what_each_run_does(training_run):
    """user 2: `failed` stood there while the run trained; each log was downloaded whole."""
    head = Head()
    ids = ("busy", "lost", "done", "ended", "new")
    for name in ids:
        at = training_run.path if name == "lost" else training_run.path / name
        head.submit(name, submission(name, f"checkpoint.dir={at}").metadata())
    training_run.belongs_to("lost")
    head.end("lost", "failed", exit_code=None, message="the driver died")
    head.end("done", "finished")
    head.end("ended", "failed", exit_code=2, message="Job failed:\nremesh: no data in x\n")
    head.end("new", "pending")
    head.texts["done"] = "> finished at step 80, loss 2: all\n"
    rows = {row["id"]: (row["status"], row["run"], row["step"]) for row in job_rows(head)}
    assert rows == {
        "busy": ("running", "none", None),
        "lost": ("failed", "orphaned", 7),
        "done": ("finished", "over", 80),
        "ended": ("failed", "over", None),
        "new": ("pending", "none", None),
    }
    assert json.dumps(rows)
