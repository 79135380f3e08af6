"""Files of a run that are damaged: one line with file and cure, or the next best that verifies."""

import errno
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from finished_run import STEPS, contact_of, finished_run, made_run

from remesh.actors.jobs.finishing import lost_words, proven_from
from remesh.actors.run.contact import ask
from remesh.actors.run.run_view import failed
from remesh.cli.driving.drive import exit_code
from remesh.orchestrator.job.driver_words import RunStatus


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = {
    "flipped": lambda path: flip(path, -9),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "a pipe": pipe,
    "a device": device,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def test_a_command_proves_a_checkpoint_without_torch(run):
    """Loading it takes a command longer than all else that it does at the end of a run."""
    code = (
        "import sys; from pathlib import Path; "
        "from remesh.actors.jobs.finishing import flaw_of; "
        "from remesh.actors.run.folder import RunFolder; "
        "folder = RunFolder(Path(sys.argv[1])); "
        "print(flaw_of(folder, folder.checkpoints()[0]), 'torch' in sys.modules)"
    )
    folder = str(run.checkpoint(STEPS).parent)
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["None", "False"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("what", ["manifest", "shard"])
def test_a_run_is_finished_if_its_last_checkpoint_is_whole(run, how, what):
    """security D3: only names were looked at."""
    file = run.checkpoint(STEPS) / "manifest.json" if what == "manifest" else run.shard(STEPS)
    DAMAGES[how](file)
    said = run.take_up()
    assert said.code == 4, said.text  # it would go on from the one before
    assert "finished at" not in said.text
    _, flaws = proven_from(run.run, run.run.checkpoints(), STEPS)
    told = " ".join((*flaws, *lost_words(run.run)))
    if what == "manifest" and how in ("deleted", "a folder"):
        assert "tells of a checkpoint at step 12, and the newest is of 8" in told
        return
    assert f"checkpoint step-{STEPS:08d}.gen-1.start-1 cannot be read: {file.name}" in told
    assert "goes on from step 8" in told


def test_without_one_whole_checkpoint_nothing_is_started(run):
    """security D3: never from fresh parameters in silence."""
    for step in (4, 8, STEPS):
        flip(run.shard(step), -1)
    said = run.take_up()
    assert said.code == 2, said.text
    assert "--fresh" in said.err


def test_an_older_checkpoint_matters_to_nobody_who_is_finished(run):
    flip(run.shard(4), -1)
    assert run.take_up().code == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b"9" * 5000,
        b'{"format_version": 4}',
    ],
)
@pytest.mark.parametrize("name", ["fingerprint.json", "bits.json"])
def test_a_damaged_record_of_a_run_is_one_line_with_file_and_cure(run, name, content):
    """security D4: JSONDecodeError, RecursionError, "a bug in remesh"."""
    (run.run_dir / name).write_bytes(content)
    said = run.take_up("--set", "train.steps=20")
    assert said.code == 2, said.text
    assert said.err.startswith(f"remesh: {run.run_dir / name} ")
    assert "delete it" in said.err
    assert said.err.count("\n") == 1
    (run.run_dir / name).unlink()  # the cure
    assert run.take_up("--set", "train.steps=20").code == 4
    assert run.take_up().code == 0


@pytest.mark.parametrize("values", [{"seed": [1]}, [1], 7, {"seed": {}}])
def test_a_fingerprint_of_another_shape_is_damaged(run, values):
    """security D4: `[]` was a TypeError."""
    told = {"format_version": 4, "fingerprint": values}
    (run.run_dir / "fingerprint.json").write_text(json.dumps(told))
    said = run.take_up()
    assert said.code == 2
    assert "fingerprint.json" in said.err
    assert "holds another run" not in said.err


@pytest.mark.parametrize("how", ["a pipe", "a device", "a folder"])
@pytest.mark.parametrize(
    "name", ["fingerprint.json", "bits.json", "run.json", "journal/000001.jsonl"]
)
def test_what_is_no_file_is_not_waited_for(run, name, how):
    """security D5: it hung, or ate all memory."""
    path = run.run_dir / name
    if name == "run.json":
        path.write_bytes(b"{}")
    DAMAGES[how](path)
    for said in (
        run.take_up(),
        run.remesh("status", run.run_dir),
        run.take_up("--set", "train.steps=20"),
    ):
        assert said.code in (0, 2, 4), said.text
        assert "bug" not in said.text
        assert said.err.count("\n") <= 1
    if name == "fingerprint.json":
        said = run.take_up()
        assert said.code == 2
        assert str(path) in said.err


@contextmanager
def somebody_answers(values):
    """A server at whose port a controller once was."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = values if isinstance(values, bytes) else json.dumps(values).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(
    "values", [[], [1], {}, 7, {"phase": "running"}, {"id": "cd34"}, b"[" * 100_000]
)
def test_whoever_answers_without_the_name_of_the_run_is_not_its_controller(run, values):
    """security D4: any JSON from that port counted as a live controller."""
    with somebody_answers(values) as port:
        contact = contact_of(port=port)
        assert ask(contact, "/status") is None
        run.run.publish(contact)
        assert run.take_up().code == 0
        assert run.remesh("status", run.run_dir).code == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNRESET])
def test_what_the_user_cannot_mend_in_the_folder_is_not_blamed_on_it(number):
    """security B6: "the run's folder cannot be used: Too many open files", exit 2."""
    status = RunStatus(phase="running", step=1, steps=2)
    told = failed(status, OSError(number, os.strerror(number)))
    assert exit_code(told, None) == 3
    assert "folder" not in told.reason
    assert os.strerror(number) in told.reason
    full = failed(status, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert exit_code(full, None) == 2
    assert "the run's folder cannot be used: [Errno 28] No space left on device" in full.reason


def test_lost_or_repeated_samples_are_a_line_and_a_code_of_their_own(tmp_path):
    """security D1: a report with lost 24 changed no exit code and printed no line."""
    run = made_run(tmp_path, lambda _job, step: f"{step:040x}")
    said = run.take_up()
    assert said.code == 5
    assert "48 samples were lost" in said.out
    assert "48 trained twice" in said.out


def test_a_copy_of_a_finished_run_is_finished(run, tmp_path):
    """security D6: it stays right."""
    shutil.copytree(run.run_dir, tmp_path / "copy")
    said = run.take_up("--set", f"checkpoint.dir={tmp_path / 'copy'}")
    assert said.code == 0


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_claims_of_a_finished_run_matter_to_nobody(run, how):
    """security D6: it stays right."""
    DAMAGES[how](run.run_dir / "claims" / "000001.json")
    assert run.take_up().code == 0


def test_without_its_fingerprint_a_run_is_known_by_the_newest_checkpoint_that_can_be_read(run):
    """security D4: the cure that a damaged fingerprint names."""
    (run.run_dir / "fingerprint.json").unlink()
    flip(run.checkpoint(STEPS) / "manifest.json", 40)
    assert run.take_up().code == 4  # it goes on
    said = run.take_up("--set", "model.ffn_width=16")
    assert "holds another run: model.ffn_width was 8 and is 16" in said.err
