"""What is known to go wrong elsewhere: late and doubled words, false alarms, edges of a resume."""

import time

import pytest

from remesh.orchestrator.control import commands as cmd
from remesh.orchestrator.control import events as ev
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.options import Options
from remesh.orchestrator.control.records import CheckpointState, FreshState, PeerState, StepRecord
from remesh.parallel.state.manifest import ShardFile


def records(first, last, ended_s):
    return tuple(
        StepRecord(
            step=step,
            loss=1.0,
            grad_norm=1.0,
            lr=0.1,
            tokens=10,
            samples=4,
            digest=f"d{step}",
            applied=True,
            step_s=0.2,
            ended_s=ended_s,
        )
        for step in range(first, last + 1)
    )


class Drive:
    """Plays the cluster for one controller; every event comes a little later than the last."""

    def __init__(self, *, nodes=(("head", 2), ("b", 2)), **options):
        self.controller = Controller(Options(**{"steps": 80, "max_dp": 4, **options}))
        self.now_s = 0.0
        self.commands = []
        for name, slots in nodes:
            self.do(ev.NodeJoined(node=name, slots=slots, head=name == "head"))
        self.do(ev.RunStarted())

    @property
    def state(self):
        return self.controller.state

    @property
    def members(self):
        known = self.state.roster.workers
        return [m.worker for m in self.state.current.members if m.worker in known]

    def do(self, *events, after_s=0.01):
        self.now_s += after_s
        new = [command for e in events for command in self.controller.handle(e, self.now_s)]
        self.commands += new
        return new

    def all(self, kind, *, workers=None, generation=None, **values):
        number = self.state.last_generation if generation is None else generation
        names = self.members if workers is None else workers
        return self.do(*(kind(worker=name, generation=number, **values) for name in names))

    def ready(self):
        for worker in list(self.state.roster.workers.values()):
            if worker.state == "starting":
                self.do(ev.WorkerReady(worker=worker.name, node=worker.node, pid=1))

    def train(self, last=None):
        """Forms and restores the newest generation, and trains to `last`."""
        self.all(ev.WorkerFormed, form_s=0.01)
        self.all(ev.WorkerRestored, at_step=self.state.current.from_step, restore_s=0.01)
        if last is not None:
            self.steps(last)
        return self

    def steps(self, last):
        done = records(self.state.step + 1, last, self.now_s)
        self.all(ev.StepsDone, workers=self.members[:1], records=done)

    def lose(self, *workers):
        return self.do(*(ev.WorkerLost(worker=name, cause="killed") for name in workers))

    def park(self, at_step, **values):
        return self.all(ev.WorkerParked, at_step=at_step, drained=False, **values)

    def save(self, step, **values):
        files = (ShardFile(name="part", size_bytes=1, digest="0"),)
        return self.all(ev.FilesSaved, step=step, files=files, **values)

    def commit(self, step):
        generation = self.state.last_generation
        name = f"step-{step}.gen-{generation}"
        self.do(ev.CheckpointCommitted(generation=generation, step=step, name=name))


def running(last=None, **options):
    drive = Drive(**options)
    drive.ready()
    return drive.train(last)


def of(kind, commands):
    return [command for command in commands if isinstance(command, kind)]


@pytest.mark.parametrize("victims", [("worker-0",), ("worker-0", "worker-3"), ("worker-0", "b")])
def test_rank_0_or_its_node_or_two_at_once_may_die(victims):
    drive = running(10)
    for victim in victims:
        if victim == "b":
            drive.do(ev.NodeLost(node="b", cause="unplugged"))
        else:
            drive.lose(victim)
    drive.park(10)
    form = of(cmd.Form, drive.commands)[-1]
    assert form.generation == 2
    assert form.from_step == 10
    assert not {member.worker for member in form.members} & set(victims)


def test_a_save_that_a_dead_writer_left_unfinished_is_not_committed_the_next_one_is():
    drive = running(20)
    drive.save(20, workers=["worker-0", "worker-2", "worker-3"])
    drive.lose("worker-1")
    drive.park(20)
    drive.train(40)
    assert of(cmd.Commit, drive.commands) == []
    (commit,) = of(cmd.Commit, drive.save(40))
    assert (commit.generation, commit.step, len(commit.files)) == (2, 40, 3)


def test_a_silent_node_is_no_reason_to_leave_a_mesh_that_trains():
    drive = running(10)
    for _ in range(5):
        assert drive.do(ev.NodeSilent(node="b", silent_s=20.0), after_s=20.0) == []
    drive.do(ev.NodeLost(node="b", cause="silent for 90 s"))
    drive.park(10)
    assert drive.state.last_generation == 2
    drive.train(20)
    assert drive.do(ev.NodeSilent(node="head", silent_s=20.0), after_s=20.0) == []
    assert drive.state.last_generation == 2


def test_late_and_doubled_words_of_older_generations_change_nothing():
    drive = running(10)
    drive.lose("worker-3")
    drive.park(10)
    drive.train(12)
    late = {"workers": ["worker-0", "worker-1", "worker-3"], "generation": 1}
    commands = drive.all(ev.GroupBroken, error="late", **late)
    commands += drive.all(ev.WorkerParked, at_step=10, drained=False, **late)
    commands += drive.all(ev.WorkerErred, error="late", user_error=False, **late)
    commands += drive.all(ev.RestoreFailed, name="x", error="late", **late)
    commands += drive.lose("worker-3")
    assert commands == []
    assert drive.state.phase == "running"
    drive.all(ev.GroupBroken, error="real", workers=["worker-0"])
    drive.all(ev.GroupBroken, error="real", workers=["worker-0", "worker-1"])
    drive.park(12)
    assert drive.state.last_generation == 3


def test_files_of_an_abandoned_timeline_are_not_committed():
    drive = running(20)
    drive.save(20)
    drive.commit(20)
    drive.steps(40)
    drive.lose(*drive.members)
    drive.ready()
    assert of(cmd.Form, drive.commands)[-1].restore == CheckpointState(
        step=20, name="step-20.gen-1"
    )
    dead = [f"worker-{number}" for number in range(4)]
    assert drive.save(40, generation=1, workers=dead) == []
    drive.train(40)
    (commit,) = of(cmd.Commit, drive.save(40))
    assert commit.generation == 2


def test_a_writer_that_dies_after_it_parked_is_not_waited_for():
    drive = running(80)
    drive.all(ev.WorkerParked, at_step=80, drained=True)
    drive.save(80, workers=["worker-0", "worker-1", "worker-2"])
    assert of(cmd.Form, drive.lose("worker-3"))[0].from_step == 80
    drive.train()
    drive.save(80)
    drive.all(ev.WorkerParked, at_step=80, drained=True)
    drive.commit(80)
    assert drive.state.phase == "finished"


def test_the_loss_of_one_that_has_parked_and_saved_does_not_matter():
    drive = running(80)
    drive.all(ev.WorkerParked, at_step=80, drained=True)
    drive.save(80, workers=["worker-0", "worker-1", "worker-3"])
    assert of(cmd.Form, drive.lose("worker-3")) == []
    assert of(cmd.Commit, drive.save(80, workers=["worker-2"]))


def test_a_checkpoint_waits_for_the_records_of_its_steps():
    drive = running(18)
    assert of(cmd.Commit, drive.save(20)) == []
    rank_0 = drive.members[:1]
    assert drive.all(ev.StepsDone, workers=rank_0, records=records(20, 20, 1.0)) == []
    (commit,) = drive.all(ev.StepsDone, workers=rank_0, records=records(19, 19, 1.0))
    assert commit.step == 20


def test_a_fence_asks_for_every_record_that_is_missing():
    drive = running(10)
    drive.all(ev.StepsDone, workers=drive.members[:1], records=records(13, 15, 1.0))
    (fence,) = of(cmd.Fence, drive.lose("worker-3"))
    assert fence.heard_step == 10


def test_when_all_die_the_first_step_is_the_one_after_the_checkpoint():
    drive = running(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(15)
    drive.lose(*drive.members)
    drive.ready()
    life = drive.state.current
    assert life.from_step == 10
    assert life.lost_steps == 5


def test_state_of_an_abandoned_timeline_is_never_a_source():
    """Fenced before it restored the checkpoint, a member still holds what it was to forget."""
    drive = running(20, max_dp=2, nodes=(("head", 2),))
    drive.save(20)
    drive.commit(20)
    drive.steps(25)
    for _ in range(2):
        drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
        drive.park(25)
        drive.all(ev.RestoreFailed, name="", error="bad copy", workers=drive.members[:1])
        drive.park(25)
    assert isinstance(drive.state.current.restore, CheckpointState)
    drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
    drive.park(25)
    assert isinstance(drive.state.current.restore, CheckpointState)
    assert [member.at_step for member in drive.state.current.members] == [None, None]


def test_a_member_fenced_before_it_copied_keeps_what_it_had():
    drive = running(10, max_dp=2, nodes=(("head", 2),))
    drive.all(ev.GroupBroken, error="reset", workers=["worker-0"])
    drive.park(10, workers=["worker-0"])
    drive.park(11, workers=["worker-1"], records=records(11, 11, 1.0))
    assert drive.state.current.restore == PeerState(step=11, source=1)
    drive.lose("worker-1")
    drive.park(10)
    assert drive.state.current.restore == PeerState(step=10, source=0)
    assert drive.state.current.lost_steps == 1


def test_a_finished_run_does_nothing_when_it_is_started_again():
    done = CheckpointState(step=80, name="step-80")
    drive = Drive(resume=done)
    assert [type(command) for command in drive.commands] == [cmd.End]
    assert drive.commands[0].status == "finished"
    assert drive.state.step == 80


def test_a_resumed_run_goes_on_behind_its_checkpoint_with_new_generations():
    middle = CheckpointState(step=16, name="step-16.gen-3")
    drive = running(32, steps=32, resume=middle, last_generation=3)
    (form,) = of(cmd.Form, drive.commands)
    assert (form.generation, form.from_step, form.restore) == (4, 16, middle)
    drive.save(32)
    drive.commit(32)
    drive.all(ev.WorkerParked, at_step=32, drained=True)
    assert drive.state.phase == "finished"


def test_four_become_three_at_once_and_six_in_one_step():
    drive = running(10, nodes=(("head", 2), ("b", 2)), max_dp=6, min_workers=3)
    drive.lose("worker-3")
    drive.park(10)
    assert len(drive.state.current.members) == 3
    drive.train(12)
    drive.do(ev.NodeJoined(node="c", slots=2))
    drive.ready()
    drive.all(ev.WorkerParked, at_step=13, drained=True, records=records(13, 13, 1.0))
    assert drive.state.last_generation == 3
    assert len(drive.state.current.members) == 6


def test_a_start_that_takes_too_long_is_a_failure_each_time_and_ends_the_run():
    drive = Drive(nodes=(("head", 1),), max_failures=2)
    for _ in range(20):
        if drive.state.phase != "waiting":
            break
        drive.now_s = drive.controller.next_deadline_s()
        ended = of(cmd.EndWorker, drive.do(ev.Tick(), after_s=0.0))
        drive.lose(*(command.worker for command in ended))
    assert drive.state.budget.total == 3
    assert drive.commands[-1].status == "failed"
    assert "did not start within 60 s" in drive.commands[-1].reason


def test_a_mesh_that_makes_no_step_is_left():
    drive = running(10)
    drive.now_s = drive.controller.next_deadline_s()
    (fence,) = of(cmd.Fence, drive.do(ev.Tick(), after_s=0.0))
    assert fence.workers == ("worker-0", "worker-1", "worker-2", "worker-3")


def test_a_job_that_fails_while_its_workers_warm_up_ends_at_once():
    drive = Drive()
    (end,) = of(
        cmd.End,
        drive.do(ev.WorkerErred(worker="worker-0", generation=0, error="no data", user_error=True)),
    )
    assert (end.status, end.reason, end.user_error) == ("failed", "no data", True)


def test_a_worker_that_restored_another_step_does_not_train():
    drive = Drive()
    drive.ready()
    drive.all(ev.WorkerFormed, form_s=0.01)
    drive.all(ev.WorkerRestored, workers=["worker-0"], at_step=7, restore_s=0.0)
    assert drive.state.phase == "fencing"


def test_a_second_controller_ends_this_one():
    drive = running(20)
    drive.save(20)
    text = "another controller has claimed the run"
    drive.do(ev.CommitFailed(generation=1, step=20, error=text, fenced=True))
    assert drive.commands[-1] == cmd.End(status="failed", reason=text)


def test_recovery_is_counted_from_the_death_to_the_end_of_the_first_step():
    drive = running(10)
    died_at_s = drive.now_s
    drive.do(ev.WorkerLost(worker="worker-3", cause="killed"), after_s=0.1)
    drive.park(10)
    drive.train()
    drive.now_s += 0.3
    drive.steps(11)
    # The moment of the death may be told last.
    drive.do(ev.WorkerLost(worker="worker-3", cause="killed", died_at_s=died_at_s))
    life = drive.controller.view().generations[-1]
    parts = life.recovery_parts
    spans = [parts.detect, parts.decide, parts.form, parts.restore, parts.first_step]
    assert parts.detect == pytest.approx(0.1)
    assert sum(spans) == pytest.approx(life.recovery_s)
    assert all(span >= 0.0 for span in spans)
    assert life.lost_steps == 0


def test_the_view_tells_who_is_where():
    drive = running(10, spares=1, nodes=(("head", 3), ("b", 2)))
    view = drive.controller.view()
    assert (view.phase, view.generation, view.step, view.steps) == ("running", 1, 10, 80)
    assert sorted(w.rank for w in view.workers if w.rank is not None) == [0, 1, 2, 3]
    assert [node.workers for node in view.nodes] == [3, 2]
    assert view.layout.dp == 4
    assert not view.ended


@pytest.fixture
def huge_mesh():
    size = 16_384
    nodes = tuple((f"node-{number:05d}", 8) for number in range(size // 8))
    drive = Drive(nodes=nodes, max_dp=size)
    drive.ready()
    return drive.train(10)


def test_sixteen_thousand_members_are_fenced_and_formed_in_a_second(huge_mesh):
    size = len(huge_mesh.members)
    assert huge_mesh.state.current.restore == FreshState()
    started_s = time.perf_counter()
    (fence,) = of(cmd.Fence, huge_mesh.lose("worker-77"))
    huge_mesh.park(10)
    assert time.perf_counter() - started_s < 1.0
    assert size == 16_384
    assert len(fence.workers) == len(huge_mesh.members) == size - 1
