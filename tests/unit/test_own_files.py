"""Files of ours are read within bounds and as files, and a run looks at its own names only."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from nobody import as_nobody

from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.actors.storage.file_storage import ABANDONED_S, TEMPORARY, LocalStorage
from remesh.cli.main import main
from remesh.data.building.prepare import build
from remesh.data.data_error import DataError
from remesh.data.manifest import MANIFEST, Manifest
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError

FINGERPRINT = {"seed": 0}


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question\n" * 20)
    build(str(tmp_path / "a.txt"), tmp_path / "data", 16)
    return tmp_path / "data"


def replaced(path, how):
    """Puts something that is no regular file in the place of one."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match how:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()


def ends(action):
    """Whether `action` ends, and raises nothing but `OSError`, DataError or UserError.

    It runs in a process that a timer ends: one that hangs fails the test and not the run of them.
    """
    pid = os.fork()
    if pid == 0:
        import resource  # noqa: PLC0415 - the child's own
        import signal  # noqa: PLC0415

        signal.alarm(60)
        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
        try:
            action()
        except (OSError, DataError, UserError):
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent is told
            os._exit(3)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


KINDS = ["pipe", "device", "folder"]


def test_what_is_no_regular_file_is_refused_and_never_waited_for(dataset, tmp_path):
    """security D5: a pipe, an endless device, a folder in the place of a dataset's files."""
    for kind in KINDS:
        shard = dataset / "shard-00000.arrow"
        replaced(shard, kind)
        assert ends(lambda: build(str(tmp_path / "a.txt"), dataset, 16))
        replaced(dataset / MANIFEST, kind)
        assert ends(lambda: Manifest.load(dataset))
        (dataset / MANIFEST).rmdir() if kind == "folder" else (dataset / MANIFEST).unlink()
        shard.rmdir() if kind == "folder" else shard.unlink()


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_run_s_files_are_regular_files(tmp_path, kind):
    """security D5: fingerprint.json, run.json, claims and manifests, all read through storage."""
    storage = LocalStorage(tmp_path)
    replaced(tmp_path / "one", kind)
    assert ends(lambda: storage.get("one"))
    assert ends(lambda: storage.get_range("one", 0, 10))
    assert ends(lambda: storage.read_into("one", 0, [memoryview(bytearray(10))]))
    folder = RunFolder(tmp_path / "run")
    replaced(folder.path / "fingerprint.json", kind)
    assert ends(folder.fingerprint)
    replaced(folder.path / "run.json", kind)
    assert folder.contact() is None


def test_a_job_file_that_never_ends_is_refused(tmp_path):
    """security D5: no more of it is read than shows that it is none."""
    endless = tmp_path / "job.toml"
    endless.symlink_to("/dev/zero")
    assert ends(lambda: load_job(endless))


def test_a_job_file_may_come_out_of_a_pipe():
    """security D5: what a shell makes of <(command) is read like a file."""
    tiny = Path(__file__).parents[2] / "examples" / "tiny.toml"
    reading, writing = os.pipe()
    os.write(writing, tiny.read_bytes())
    os.close(writing)
    assert load_job(Path(f"/dev/fd/{reading}")).name == "tiny"
    os.close(reading)


@pytest.fixture
def volume():
    """A folder for anybody, with a `lost+found` as a volume has it."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o777)
    (path / "lost+found").mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


def test_a_run_lives_beside_a_volume_s_lost_and_found(volume):
    """inputs B4: it looks at its own names only."""
    folder = RunFolder(volume)

    def life():
        folder.probe()
        folder.keep(FINGERPRINT)
        claims = folder.claim("ab12"), folder.newest_claim()
        set_aside(folder.places)
        return claims, folder.checkpoints(), folder.fingerprint()

    assert as_nobody(life) == "((1, 1), (), None)"


def test_a_folder_of_the_run_that_cannot_be_read_is_named_as_that(volume):
    """inputs B4: reading is not writing."""
    (volume / "claims").mkdir(mode=0o700)
    said = as_nobody(RunFolder(volume).probe)
    assert f"{volume / 'claims'}" in said
    assert "cannot be read: Permission denied" in said


def test_a_sweep_removes_unfinished_files_of_ours_only(tmp_path):
    """issue 9, Delivered 3: by full name, in the folders that a run makes; never behind a link."""
    folder = RunFolder(tmp_path / "run")
    unfinished = f"{TEMPORARY}0123456789abcdef"
    ours = [
        unfinished,
        *(f"{room}/{unfinished}" for room in ("claims", "step-00000020.gen-1.start-0")),
    ]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal").symlink_to(tmp_path / "elsewhere")
    foreign = [
        f"{TEMPORARY}notes",
        f"claims/{unfinished}.txt",
        f"notes/{unfinished}",
        f"step-by-step/{unfinished}",
        f"claims/deeper/{unfinished}",
        f"journal/{unfinished}",
    ]
    for path in [*ours, *foreign]:
        file = folder.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
        os.utime(file, (time.time() - ABANDONED_S - 5,) * 2)
    folder.probe()
    assert [path for path in ours if (folder.path / path).exists()] == []
    assert [path for path in foreign if not (folder.path / path).exists()] == []


def test_a_report_replaces_a_report_and_nothing_else(tmp_path, capsys):
    """issue 9, Delivered 3: --report with the name of another file is a slip."""
    tiny = Path(__file__).parents[2] / "examples" / "tiny.toml"
    job = tmp_path / "job.toml"
    job.write_bytes(tiny.read_bytes())
    link = tmp_path / "out"
    link.symlink_to("/dev/null")
    for path in (job, link):
        assert main(["run", str(job), "--report", str(path)]) == 2
        assert "is no report of a run" in capsys.readouterr().err
    assert job.read_bytes() == tiny.read_bytes()
    assert link.is_symlink()
