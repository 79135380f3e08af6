"""Commands inside a job of somebody's Ray cluster: where they run, and what Ray removes there."""

from pathlib import Path

import pytest

import remesh.actors.checkpoints.importing  # noqa: F401 - at collection, not within a test's budget
from remesh.cli.main import main
from remesh.cli.run_command import RunRequest, run_options
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError
from remesh.runs import submission_of

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
HEAD = "10.0.0.7:6379"
PACKAGE = Path("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_4f")


@pytest.fixture
def inside(monkeypatch):
    """As Ray's job supervisor sets it for the command of a job."""
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {}, "metadata": {}}')
    monkeypatch.setenv("RAY_ADDRESS", HEAD)


def options(*overrides, address=None):
    request = RunRequest(job=TINY, overrides=overrides, address=address)
    return run_options(request, load_job(TINY, overrides))


@pytest.mark.usefixtures("inside")
def test_a_job_of_a_cluster_starts_no_cluster_inside_of_it():
    """inputs B8: the address is the one that Ray tells the job."""
    with pytest.raises(UserError) as caught:
        options()
    assert f"this is a job of the Ray cluster at {HEAD}" in str(caught.value)
    assert f"add --address {HEAD}" in str(caught.value)
    assert "remesh submit" in str(caught.value)
    assert options(address=HEAD).address == HEAD


def test_a_job_that_is_not_told_its_cluster_is_refused_all_the_same(monkeypatch):
    """inputs B8"""
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match="add --address HOST:PORT"):
        options()


def test_an_address_in_the_environment_of_a_shell_is_none_of_ours(monkeypatch):
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", HEAD)
    assert options().address is None


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("key", ["checkpoint.dir", "checkpoint.url", "data.dir"])
def test_a_folder_that_ray_removes_with_the_job_holds_nothing_of_a_run(key):
    """inputs B8"""
    with pytest.raises(UserError, match=f"{key}: .*working_dir_files.*--set {key}="):
        options(f"{key}={PACKAGE / 'runs' / 'rel'}", address=HEAD)


def test_a_relative_folder_is_seen_as_what_it_is_there(tmp_path, monkeypatch):
    """inputs B8: for `remesh run` and for `remesh submit`, which counts from the same folder."""
    package = tmp_path / PACKAGE.relative_to("/")
    package.mkdir(parents=True)
    monkeypatch.chdir(package)
    with pytest.raises(UserError, match=r"checkpoint\.dir: "):
        options("data.dir=/data", address=HEAD)
    with pytest.raises(UserError, match=r"checkpoint\.dir: "):
        submission_of(TINY, overrides=("data.dir=/data",), folder=package)
    kept = ("checkpoint.dir=/runs/tiny", "data.dir=/data")
    assert options(*kept, address=HEAD).address == HEAD
    assert submission_of(TINY, overrides=kept, folder=package).folder == str(package)


def test_an_imported_model_begins_no_run_there(capsys):
    """inputs B8"""
    place = f"checkpoint.dir={PACKAGE / 'runs'}"
    command = ["checkpoint", "import", "weights", str(TINY), "--from", "hf", "--set", place]
    assert main(command) == 2
    assert "remesh: checkpoint.dir: " in capsys.readouterr().err
