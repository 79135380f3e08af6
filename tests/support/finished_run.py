"""A small finished run as its files: dataset, journal, checkpoints with real bytes.

What trained it is a machine that is told of a cluster; so its commands and its journal are real.
"""

import atexit
import io
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from control_drive import Drive
from control_values import record
from manifests import checkpoint_manifest
from whole_shards import encode_shard

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.cli.main import main
from remesh.data.building.prepare import build
from remesh.data.manifest import Manifest
from remesh.data.row_hashes import expected_digests
from remesh.data.skips import parse_skips
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.commands import Announce, End
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.job import Job, load_job
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.root_manifest import CheckpointRef, shard_file_name
from remesh.parallel.state.shards import write_shard

STEPS, EVERY, BATCH, WORKERS = 12, 4, 4, 2
NOWHERE = "127.0.0.1:1"  # where no cluster answers: a run that goes on ends there, with code 4

JOB = """
[job]
name = "small"
[model]
num_layers = 1
width = 8
num_heads = 1
ffn_width = 8
vocab_size = 256
[data]
dir = "{folder}/data"
[train]
steps = 12
global_batch = 4
microbatch = 2
seq_len = 16
[checkpoint]
dir = "{folder}/run"
every = 4
[elastic]
max_workers = 2
"""


def loss_at(step):
    return 2.0 + 1.0 / step


@dataclass(frozen=True, slots=True)
class Said:
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err


@dataclass(frozen=True, slots=True)
class FinishedRunFiles:
    """The files of the run below `folder`; `options` are those of its only start."""

    folder: Path
    job: Job
    options: Options

    @property
    def run_dir(self):
        return self.folder / "run"

    @property
    def job_file(self):
        return self.folder / "job.toml"

    @property
    def journal(self):
        return self.run_dir / "journal" / "000001.jsonl"

    @property
    def run(self):
        return RunFolder(self.run_dir)

    def checkpoint(self, step):
        (found,) = self.run_dir.glob(f"step-{step:08d}.gen-*")
        return found

    def shard(self, step):
        return self.checkpoint(step) / shard_file_name(0, WORKERS)

    def remesh(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(word) for word in words])
        return Said(code, out.getvalue(), err.getvalue())

    def take_up(self, *words):
        """`remesh run` where no cluster is: a finished run is told, another ends with 4."""
        return self.remesh("run", self.job_file, "--address", NOWHERE, *words)


def finished_run(folder):
    """A run of 12 steps of which those at 4, 8 and 12 are saved: a copy of one that is made once.

    Files are synced as they are made, which on a busy disk takes longer than all the rest.
    """
    there, options = _made()
    shutil.copytree(there, folder, dirs_exist_ok=True)
    return _of(folder, options)


def made_run(folder, digest=None):
    """Likewise, made anew, with the digests that `digest` gives for a job and a step."""
    _write_data(folder)
    place = RunFolder(folder / "run")
    job = load_job(folder / "job.toml")
    fingerprint = job.fingerprint(Manifest.load(folder / "data").digest)
    place.keep(fingerprint)
    place.keep_bits(job.bits)
    place.claim("ab12")
    drive = WrittenDrive(place, job, fingerprint, digest=digest or digest_at)
    drive.through()
    return _of(folder, drive.controller.options)


@cache
def _made():
    folder = Path(tempfile.mkdtemp(prefix="remesh-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder, made_run(folder).options


def _of(folder, options):
    (folder / "job.toml").write_text(JOB.format(folder=folder))
    return FinishedRunFiles(folder, load_job(folder / "job.toml"), options)


def _write_data(folder):
    (folder / "a.txt").write_text("to be or not to be, that is the question\n" * 40)
    build(str(folder / "a.txt"), folder / "data", 16)
    (folder / "job.toml").write_text(JOB.format(folder=folder))


def contact_of(run="ab12", port=1):
    return Contact(
        run=run,
        host="127.0.0.1",
        port=port,
        token="secret",
        address="",
        pid=1,
        started_s=1.0,
        lease_s=0.05,
    )


class WrittenDrive(Drive):
    """Writes the journal of what it does, and the files of its checkpoints."""

    def __init__(self, place, job, fingerprint, *, incarnation=1, digest=None, **more):
        self.place, self.job, self.fingerprint = place, job, fingerprint
        self.incarnation, self.digest, self.writer = incarnation, digest or digest_at, None
        super().__init__(steps=job.train.steps, max_dp=WORKERS, **more)

    def do(self, *events, after_s=0.01):
        if self.writer is None:
            self.writer = JournalWriter(self.place.path, self.incarnation, self.controller.options)
        self.now_s += after_s
        new = []
        for event in events:
            self.writer.event(event, self.now_s)
            new += self.controller.handle(event, self.now_s)
        for command in new:
            if isinstance(command, Announce):
                self.writer.announcement(command.text, self.now_s)
            elif isinstance(command, End):
                self.writer.ending(command.sentence, self.now_s)
        self.commands += new
        return new

    def steps(self, last):
        """Each told by itself, as on a machine where a step takes a second."""
        for step in range(self.state.step + 1, last + 1):
            done = record(
                step,
                loss=loss_at(step),
                digest=self.digest(self.job, step),
                samples=BATCH,
                ended_s=self.now_s,
            )
            generation = self.state.last_generation
            self.do(ev.StepsDone(worker=self.members[0], generation=generation, records=(done,)))

    def keep(self, step):
        """The checkpoint of a step, each worker's file and the manifest."""
        generation = self.state.last_generation
        ref = CheckpointRef(step=step, generation=generation, start=1)
        files = []
        for rank, worker in enumerate(self.members):
            tensors = {f"w{rank}": torch.full((64,), float(step))}
            path = f"{ref.name}/{shard_file_name(rank, WORKERS)}"
            files.append(write_shard(self.place.storage, path, encode_shard(tensors, ref)))
            told = ev.FilesSaved(
                worker=worker, generation=generation, step=step, files=(files[-1],)
            )
            self.do(told)
        more = {"fingerprint": self.fingerprint, "position": step * BATCH}
        commit(self.place.storage, checkpoint_manifest(ref, files, **more))
        self.do(ev.CheckpointCommitted(generation=generation, step=step, name=ref.name))
        return CheckpointState(step=step, name=ref.name)

    def through(self, last=STEPS):
        """From the start to the end of the run, or until a step without an end."""
        self.ready()
        self.train()
        for step in range(self.state.step + EVERY, last + 1, EVERY):
            self.steps(step)
            if step < STEPS:
                self.keep(step)
        if last == STEPS:
            self.keep(STEPS)
            self.park(STEPS, drained=True)


def digest_at(job, step):
    """That of a step of this job."""
    digests = expected_digests(
        Path(job.data.dir), global_batch=job.train.global_batch, seed=job.job.seed
    )
    return digests.of(step, parse_skips(job.data.skip)).hex()
