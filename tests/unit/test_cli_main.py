import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from remesh.cli.data_commands import ensure_dataset
from remesh.cli.main import main
from remesh.cli.run_command import RunRequest, run_options
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.faults_on_order import parse_fault, parse_kill
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "Missing argument 'JOB'"),
        (["run", "none.toml"], "none.toml: no such file"),
        (["run", TINY, "--set", "train.stesp=3"], "did you mean train.steps?"),
        (["run", TINY, "--set", "train.steps=-3"], "train.steps = -3: expected at least 1"),
        (["run", TINY, "--kill", "worker"], "--kill worker: expected worker@STEP"),
        (["run", TINY, "--fault", "burn@step=3"], "--fault burn@step=3: burn is no fault"),
        (["run", TINY, "--fault", "kill@step=x"], "step=x: expected a whole number from 1"),
        (["run", TINY, "--kill", "worker@81"], "the job ends at train.steps = 80"),
        (["run", TINY, "--kill", "node@4", "--nodes", "1"], "the head node is never killed"),
        (["run", TINY, "--kill", "node@4", "--address", "auto"], "refused with --address"),
        (["run", TINY, "--nodes", "2", "--address", "auto"], "leave them out"),
        (["run", TINY, "--nodes", "0"], "--nodes"),
        (["run", TINY, "--report", f"{TINY}/r.json"], "tiny.toml/r.json: cannot be written: "),
        (["run", TINY, "--set", "elastic.min_workers=4", "--nodes", "1"], "elastic.min_workers"),
        (["frobnicate"], "frobnicate"),
        (["status", "/nowhere"], "/nowhere: no such run"),
        (["data", "build", "/nowhere", "--out", "x", "--seq-len", "8"], "no source /nowhere"),
        (["data", "build", "x", "--out", "x"], "--seq-len"),
        (["submit", TINY], "no cluster: give --address http://HOST:8265"),
        (["submit", TINY, "--id", "my run/1", "--address", "x:1"], "an id has 1 to 63 letters"),
        (["submit", TINY, "--set", "train.steps=-3", "--address", "x:1"], "expected at least 1"),
        (["submit", "none.toml", "--address", "x:1"], "none.toml: no such file"),
        (["logs", "first", "--address", "ray://head:10001"], "expected http://HOST:8265"),
        (["ls", "--address", "http://head:99999"], "expected http://HOST:8265"),  # user 18
        (["ls", "--address", "http://[::1"], "expected http://HOST:8265"),
        (["stop", "first"], "first: no such run here; give a run's folder or a job file"),
        (["run", TINY, "--fault", "kill@step=3,rank=4"], "rank=4: the run has at most 4 ranks"),
        (["run"], "(remesh run --help)"),
        (["checkpoint", "export", "x"], "(remesh checkpoint export --help)"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error_and_code_2(
    arguments, text, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("remesh: ")
    assert error.count("\n") == 1
    assert text in error
    assert "Traceback" not in error


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["data", "--help"]])
def test_help_shows_commands_or_examples(arguments, capsys):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: remesh")
    if arguments == ["run", "--help"]:
        assert "remesh run examples/tiny.toml --fresh --kill worker@20 --kill node@40" in out


def test_the_version_is_the_package_s(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("remesh 0.")


def test_the_traceback_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setenv("REMESH_TRACEBACK", "1")
    assert main(["run", "none.toml"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.splitlines()[-1].startswith("remesh: none.toml: no such file")


def test_the_command_starts_without_ray_torch_or_pyarrow():
    code = (
        "import sys, remesh.cli.main, remesh.cli.run_command; "
        "print({'ray', 'torch', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_working_folder_that_is_gone_is_told_as_that(capsys, tmp_path, monkeypatch):
    job = Path(TINY).absolute()
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(["run", str(job)]) == 2
    told = "remesh: the working folder is gone; change to one that is there\n"
    assert capsys.readouterr().err == told


@contextmanager
def nobody():
    """Another user than root, who may read everything."""
    by_root = os.geteuid() == 0
    if by_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if by_root:
            os.seteuid(0)


@pytest.mark.parametrize("command", [["status"], ["checkpoint", "ls"]])
def test_a_place_that_this_user_may_not_read_is_the_users_to_mend(
    command, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("locked").mkdir(mode=0)
    assert main([*command, "nowhere"]) == 2  # loads what root alone may be able to read
    capsys.readouterr()
    with nobody():
        code = main([*command, "locked/run"])
    assert code == 2
    told = "remesh: locked/run: Permission denied; let this user have it, or name another place\n"
    assert capsys.readouterr().err == told


def test_a_run_whose_journal_may_not_be_read_is_not_said_to_be_none(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    Path("run/journal").mkdir(parents=True)
    Path("run/journal").chmod(0)
    assert main(["events", "nowhere"]) == 2
    capsys.readouterr()
    with nobody():
        assert main(["events", "run"]) == 2
    assert "run/journal: Permission denied; let this user have it" in capsys.readouterr().err


def test_ctrl_c_while_the_command_still_loads_is_no_traceback():
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from remesh.cli.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def options(**request):
    return run_options(RunRequest(job=Path(TINY), **request), load_job(Path(TINY)))


def test_a_run_starts_here_on_two_nodes_of_two_workers_unless_told_otherwise():
    assert options() == RunOptions(nodes=2, workers_per_node=2)
    faults = {"kills": ["node@4", "worker@5"], "faults": ["slow@step=3"]}
    told = options(nodes=3, workers_per_node=1, fresh=True, **faults)
    assert told == RunOptions(
        nodes=3,
        workers_per_node=1,
        faults=(parse_kill("node@4"), parse_kill("worker@5"), parse_fault("slow@step=3")),
        fresh=True,
    )
    assert options(address="auto").address == "auto"


def job_with_data(folder, *overrides):
    small = ("train.seq_len=16", f"data.dir={folder / 'data'}")
    return load_job(Path(TINY), [*small, *overrides])


def test_a_first_start_builds_the_data_and_a_second_finds_it(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("to be or not to be, that is the question\n" * 20)
    job = job_with_data(tmp_path, f"data.source={source}")
    notes = []
    ensure_dataset(job, notes.append)
    assert notes[0] == f"building {tmp_path / 'data'} from {source}"
    assert "rows of 16 tokens in 1 shard" in notes[-1]
    before = len(notes)
    ensure_dataset(job, notes.append)
    assert len(notes) == before


def test_data_that_is_missing_or_of_another_length_is_refused_with_the_cure(tmp_path):
    job = load_job(Path(TINY), ["train.seq_len=16", f"data.dir={tmp_path / 'data'}"]).model_copy(
        update={"data": job_with_data(tmp_path).data.model_copy(update={"source": None})}
    )
    with pytest.raises(UserError, match=r"remesh data build SOURCE --out .*data --seq-len 16$"):
        ensure_dataset(job, pytest.fail)
    source = tmp_path / "a.txt"
    source.write_text("to be or not to be, that is the question\n" * 20)
    notes = []
    ensure_dataset(job_with_data(tmp_path, f"data.source={source}"), notes.append)
    with pytest.raises(UserError, match=r"train.seq_len = 16 and the job says 8"):
        ensure_dataset(job_with_data(tmp_path, "train.seq_len=8"), pytest.fail)
