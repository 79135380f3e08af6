"""What a run saves, as its workers and its controller do it: on a disk, and in a bucket."""

import queue

import pytest
import torch
from control_values import record
from s3_server import HOST, make_bucket, s3_server
from small_engine import spec, started, state_hash, work_of, zero
from taken_over import take_over

from remesh.actors.controller.commits import Guards, LossesByStep, commit_checkpoint
from remesh.actors.orders import RunSpec
from remesh.actors.run.claims import check_shared
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import discard, set_aside
from remesh.actors.storage.storage_url import inside
from remesh.actors.worker.saver import Saver
from remesh.orchestrator.control.words.commands import Commit
from remesh.orchestrator.control.words.events import CheckpointCommitted, StepsDone
from remesh.orchestrator.job.job import parse_job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.worker.heard import FileWritten
from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.state.checkpoint import committed, read_manifest
from remesh.parallel.state.landing import verify
from remesh.parallel.state.reading import read_fragments
from remesh.parallel.state.root_manifest import CheckpointRef, parse_name
from remesh.parallel.step.engine import Engine

JOB = """
job.name = "small"
model = {num_layers = 1, width = 16, num_heads = 2, ffn_width = 32}
data.dir = "data"
train = {steps = 1000, global_batch = 4, microbatch = 1, seq_len = 8}
"""


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as port:
        make_bucket(port, "bucket")
        yield f"s3://bucket/%s?endpoint_override={HOST}:{port}&scheme=http&region=eu-west-1"


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


class Run:
    """One start of a run of one worker."""

    def __init__(self, path, *settings):
        job = parse_job(JOB, name="test", overrides=settings)
        self.folder = RunFolder(path, job.checkpoint.url)
        self.folder.probe()
        self.folder.keep({"seed": 0})
        self.spec = RunSpec(
            run="ab12",
            job=job,
            folder=str(path),
            data_digest="d",
            fingerprint={"seed": 0},
            start=1,
            incarnation=self.folder.claim("ab12"),
            max_members=1,
            faults=(),
            driver_lease_s=1.0,
        )
        self.losses = LossesByStep()
        self.events = queue.SimpleQueue()
        self.saver = Saver(start=1, storage=self.folder.guarded, tell=self.events.put)

    def save(self, part, step, loss=None):
        """Writes and commits; the steps that are left afterwards."""
        if not self.saver.is_prepared:
            self.saver.prepare(lambda: part, rank=0, num_writers=1)
        if loss is not None:
            self.losses.note(
                StepsDone(worker="w", generation=1, records=(record(step, loss=loss),))
            )
        self.saver.save(GenerationFence(), step=step, generation=1)
        saved = self.events.get()
        assert isinstance(saved, FileWritten), saved
        command = Commit(generation=1, step=step, files=saved.files)
        answer = commit_checkpoint(
            self.folder, self.spec, command, self.losses.at(step), Guards(lambda: None)
        )
        assert isinstance(answer, CheckpointCommitted), answer
        return [state.step for state in reversed(self.folder.checkpoints())]


def tiny_part():
    engine = started(Mesh.alone(), spec(4, 1))
    return own_part(engine.shard_state, Mesh.alone())


def test_the_newest_stay_and_one_that_is_old_enough_to_go_back_to(tmp_path):
    run = Run(tmp_path / "run", "checkpoint.keep=2")
    part = tiny_part()
    left = [run.save(part, step) for step in range(20, 301, 20)]
    assert left[:3] == [[20], [20, 40], [20, 40, 60]]
    for step, steps in zip(range(80, 301, 20), left[3:], strict=True):
        assert {step - 20, step} <= set(steps)
        assert any(50 <= step - old <= 150 for old in steps)
        assert len(steps) <= 5


def test_those_of_every_nth_step_and_the_best_stay_for_good(tmp_path):
    run = Run(
        tmp_path / "run",
        "checkpoint.keep=1",
        "checkpoint.keep_every=100",
        "checkpoint.keep_best=2",
    )
    part = tiny_part()
    losses = {step: 9.0 - step / 1000 for step in range(20, 601, 20)} | {60: 1.0, 240: 2.0}
    losses[160] = float("nan")
    for step, loss in losses.items():
        left = run.save(part, step, loss)
    assert {60, 100, 200, 240, 300, 400, 500, 600} <= set(left)
    assert set(left) - {60, 240} - set(range(100, 700, 100)) < set(range(450, 551))
    ref = CheckpointRef(step=60, generation=1, start=1)
    assert read_manifest(run.folder.guarded, ref).metrics == {"loss": 1.0}


def test_only_the_losses_of_the_newest_steps_are_kept():
    losses = LossesByStep()
    for first in range(0, 30_000, 1000):
        records = tuple(record(first + number, loss=0.5) for number in range(1000))
        losses.note(StepsDone(worker="w", generation=1, records=records))
    assert losses.at(29_999) == losses.at(20_000) == 0.5
    assert losses.at(19_999) is None


def train(engine, mesh, first, last):
    for step in range(first, last + 1):
        engine.step(step, work_of(mesh, step))


def test_a_run_saves_to_a_bucket_and_goes_on_from_there(tmp_path, bucket):
    setting = f"checkpoint.url={bucket % 'goes-on'}"
    run = Run(tmp_path / "one", setting)
    mesh = Mesh.alone()
    engine = started(mesh, spec(4, 1))
    train(engine, mesh, 1, 2)
    assert run.save(own_part(engine.shard_state, mesh), 2) == [2]
    train(engine, mesh, 3, 4)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["fingerprint.json"]

    again = Run(tmp_path / "another machine", setting)
    (newest,) = again.folder.checkpoints()
    assert again.spec.incarnation == 2
    assert again.folder.last_generation() == 1
    other = Engine(spec(4, 1))
    other.form(mesh)
    wanted = [fragment for fragment, _ in other.fragments()]
    take_over(
        other, read_fragments(again.folder.guarded, parse_name(newest.name), wanted), newest.step
    )
    train(other, mesh, 3, 4)
    assert state_hash(other) == state_hash(engine)

    command = Commit(generation=1, step=4, files=())
    late = commit_checkpoint(run.folder, run.spec, command, None, Guards(lambda: None))
    assert late.fenced, "the start before must not write there any more"


def test_a_bucket_of_another_run_is_refused_and_a_fresh_start_sets_it_aside(tmp_path, bucket):
    """user 1: what lies in `.old-1` there can be taken up, until it is discarded."""
    url = bucket % "refused"
    run = Run(tmp_path / "one", f"checkpoint.url={url}")
    run.save(tiny_part(), 2)
    other = RunFolder(tmp_path / "two", url)
    with pytest.raises(
        UserError, match=r"s3://.* holds another run: seed was 0 and is 1; .*url=URL"
    ):
        other.keep({"seed": 1})
    set_aside(other.places)
    assert committed(other.guarded) == []
    other.keep({"seed": 1})
    assert other.claim("cd34") == 2
    old = RunFolder(tmp_path / "two" / ".old-1", inside(url, ".old-1"))
    assert [state.step for state in old.checkpoints()] == [2]
    verify(old.guarded, parse_name(old.checkpoints()[0].name))
    assert old.fingerprint() == {"seed": 0}
    discard(other.places)
    assert [path for path in other.guarded.list("") if not path.startswith("claims/")] == [
        "fingerprint.json"
    ]


def test_a_bucket_that_is_not_there_is_refused_before_anything_starts(tmp_path, bucket):
    with pytest.raises(UserError, match=r"cannot be written: .*--set checkpoint.url=URL"):
        RunFolder(tmp_path, (bucket % "none").replace("//bucket", "//nowhere")).probe()


def test_checkpoints_that_would_be_left_behind_are_named(tmp_path):
    run = Run(tmp_path / "run")
    run.save(tiny_part(), 20)
    with pytest.raises(UserError, match=r"new holds no checkpoint and .*run does, of step 20"):
        Run(tmp_path / "run", f"checkpoint.url={tmp_path / 'new'}")
    set_aside(RunFolder(tmp_path / "run", str(tmp_path / "new")).places)
    assert Run(tmp_path / "run", f"checkpoint.url={tmp_path / 'new'}").folder.checkpoints() == ()


def test_a_place_that_is_another_one_on_another_node_is_named(tmp_path):
    run = Run(tmp_path / "here")
    claim = (run.spec.incarnation, "ab12")
    check_shared(run.folder.guarded, "the folder", claim, 0.1)
    elsewhere = RunFolder(tmp_path / "there")
    with pytest.raises(
        CheckpointError, match=r"the folder is not one place for all nodes: .*\.url"
    ):
        check_shared(elsewhere.guarded, "the folder", claim, 0.1)
    elsewhere.claim("of another run")
    with pytest.raises(CheckpointError, match=r"holds no claims/000001.json of this run"):
        check_shared(elsewhere.guarded, "the folder", claim, 0.1)


LAYOUTS = {
    "dp3": (Layout(dp=3), 1, ZeroSpec()),
    "zero": (Layout(dp=4), 4, zero(3)),
    "hybrid": (Layout(dp=4), 2, ZeroSpec(stage=1, group=2)),
    "tp2": (Layout(dp=2, tp=2), 1, ZeroSpec()),
}


def parts(seat, layout, shard_size, zero):
    torch.set_num_threads(1)
    mesh = seat.mesh(layout, shard_size)
    engine = started(mesh, spec(4, 1, zero=zero))
    part = own_part(engine.shard_state, mesh)
    all_reduce_(mesh.world, torch.zeros(1))  # nobody leaves while others still form
    mesh.close()
    return [(str(fragment), fragment.num_elements, tensor.nbytes) for fragment, tensor in part]


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_byte_is_written_by_one_rank_and_the_loads_are_even(pool, name):
    layout, *_ = LAYOUTS[name]
    outcomes = pool.run(parts, layout.world_size, *LAYOUTS[name])
    names = [fragment for part in outcomes for fragment, *_ in part]
    assert len(set(names)) == len(names)
    whole = pool.run(parts, 1, Layout(), 1, ZeroSpec())
    elements = [sum(size for _, size, _ in part) for part in outcomes]
    assert sum(elements) == sum(size for _, size, _ in whole[0])
    assert max(elements) <= 1.1 * min(elements) + 64
