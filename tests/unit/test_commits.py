"""Checkpoints prove which start and generation they are of, and who may commit them."""

import threading

import pytest
import torch
from manifests import checkpoint_manifest
from run_specs import claimed_spec
from waiting import NEVER_S, soon
from whole_shards import encode_shard

from remesh.actors.controller.commits import MAX_HANGING, Commits, Guards, commit_checkpoint
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.commands import Commit, Form
from remesh.orchestrator.control.words.records import FreshState
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.plan.layout import Layout
from remesh.parallel.state.checkpoint import commit, committed, go_back, prune
from remesh.parallel.state.root_manifest import CheckpointRef, parse_name, shard_file_name
from remesh.parallel.state.shards import write_shard


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def ref_of(step, generation=1, start=1):
    return CheckpointRef(step=step, generation=generation, start=start)


def written(folder, ref):
    encoded = encode_shard({"x": torch.ones(1)}, ref)
    return write_shard(folder.guarded, f"{ref.name}/{shard_file_name(0, 1)}", encoded)


def saved(folder, *refs):
    for ref in refs:
        commit(folder.guarded, checkpoint_manifest(ref, [written(folder, ref)]))


def steps(folder):
    return [state.step for state in folder.checkpoints()]


def command_of(folder, spec, step, generation=1):
    file = written(folder, ref_of(step, generation, spec.start))
    return Commit(generation=generation, step=step, files=(file,))


def form(from_step, generation):
    return Form(
        generation=generation,
        rung=Rung(layout=Layout(dp=1)),
        members=(),
        restore=FreshState(),
        from_step=from_step,
    )


class Slow:
    """A storage of which the reads of these paths wait, and tell somebody at the first."""

    def __init__(self, storage, at_first=lambda: None):
        self.storage = storage
        self.at_first = at_first
        self.hung, self.gates = set(), {}

    def __getattr__(self, name):
        return getattr(self.storage, name)

    def get_range(self, path, offset, length):
        found = self.storage.get_range(path, offset, length)
        tell, self.at_first = self.at_first, lambda: None
        tell()
        gate = self.gates.get(parse_name(path.partition("/")[0]))
        if gate is not None:
            self.hung.add(path)
            gate.wait(NEVER_S)
        return found


def test_what_a_later_generation_has_trained_anew_is_newer_than_later_steps_before_it(folder):
    """control A12: the next start went on from an abandoned timeline, and kept it."""
    saved(folder, ref_of(40, 1), ref_of(60, 1), ref_of(50, 4))
    assert steps(folder) == [50, 40]
    prune(folder.guarded, keep=1)
    assert [ref.step for ref in committed(folder.guarded)] == [50]


def test_what_a_start_goes_on_from_is_the_newest_whatever_others_commit_later(folder):
    """control A12: a frozen controller commits after another start went on from step 40."""
    saved(folder, ref_of(40))
    folder.claim("ab12")
    later = folder.claim("cd34")
    folder.stand_on(40, generation=2, start=later)
    saved(folder, ref_of(60))
    assert steps(folder) == [40]
    saved(folder, ref_of(45, 2, later))
    assert steps(folder) == [45, 40]
    prune(folder.guarded, keep=5)
    assert not folder.guarded.list(ref_of(60).name)


def test_a_fresh_start_is_not_taken_up_where_an_old_controller_ends(folder):
    folder.claim("ab12")
    folder.stand_on(0, generation=1, start=folder.claim("cd34"))
    saved(folder, ref_of(60))
    assert steps(folder) == []


def test_no_start_has_the_number_of_one_whose_claims_are_gone(folder):
    """The cure of a damaged claim is to delete it."""
    saved(folder, ref_of(20, 1, 3))
    assert folder.claim("ab12") == 4


def test_the_claims_are_read_when_all_files_have_been_looked_at(folder):
    """control A12, M04: another start took over between the look and the put."""
    spec = claimed_spec(folder)
    command = command_of(folder, spec, 60)
    folder.guarded = Slow(folder.guarded, at_first=lambda: folder.claim("cd34"))
    told = commit_checkpoint(folder, spec, command, None, Guards(lambda: None))
    assert isinstance(told, ev.CommitFailed)
    assert told.fenced
    assert steps(folder) == []


def test_nothing_is_committed_that_the_run_goes_back_behind_meanwhile(folder):
    """control A12: the commit landed after the rollback."""
    spec = claimed_spec(folder)
    command = command_of(folder, spec, 60)
    standing = [True]
    folder.guarded = Slow(folder.guarded, at_first=standing.clear)
    guards = Guards(lambda: None, lambda: bool(standing))
    told = commit_checkpoint(folder, spec, command, None, guards)
    assert isinstance(told, ev.CommitFailed)
    assert not told.fenced
    assert steps(folder) == []


class Desk:
    """Commits with what is told of them; `stands` are the generations that the run stands on."""

    def __init__(self, folder, newest=0):
        self.told, self.stands, self.synced = [], {1, 2}, 0
        self.spec = claimed_spec(folder)
        self.commits = Commits(
            folder,
            told=self.told.append,
            stands=lambda generation, _: generation in self.stands,
            sync=self._sync,
            prove=lambda: None,
            newest=newest,
        )

    def _sync(self):
        self.synced += 1

    def ask(self, folder, step, generation=1):
        command = command_of(folder, self.spec, step, generation)
        self.commits.ask(self.spec, command, None)

    def heard(self, count):
        soon(lambda: len(self.told) >= count)
        return [(type(event).__name__, event.step) for event in self.told]


def test_a_commit_that_never_answers_holds_up_no_later_one(folder):
    """control A14: after one put that hung no checkpoint was ever committed again."""
    desk = Desk(folder)
    folder.guarded = slow = Slow(folder.guarded)
    slow.gates[ref_of(20)] = threading.Event()
    desk.ask(folder, 20)
    assert soon(lambda: slow.hung)
    desk.ask(folder, 40)
    assert desk.heard(1) == [("CheckpointCommitted", 40)]


def test_one_that_answers_when_a_newer_one_is_there_is_left(folder):
    """Retention has swept its files by then."""
    desk = Desk(folder)
    folder.guarded = slow = Slow(folder.guarded)
    slow.gates[ref_of(20)] = gate = threading.Event()
    desk.ask(folder, 20)
    assert soon(lambda: slow.hung)
    desk.ask(folder, 40)
    desk.heard(1)
    gate.set()
    assert soon(lambda: not desk.commits.num_running)
    assert steps(folder) == [40]
    assert desk.heard(1) == [("CheckpointCommitted", 40)]


def test_only_a_few_commits_hang_at_a_time(folder):
    """control A14: threads are bounded, and the next one fails at once."""
    desk = Desk(folder)
    folder.guarded = slow = Slow(folder.guarded)
    gate = threading.Event()
    for number in range(1, MAX_HANGING + 1):
        slow.gates[ref_of(10 * number)] = gate
        desk.ask(folder, 10 * number)
    assert soon(lambda: len(slow.hung) == MAX_HANGING)
    desk.ask(folder, 90)
    assert desk.heard(1) == [("CommitFailed", 90)]
    assert "4 commits before it have had no answer" in desk.told[0].error
    gate.set()
    assert soon(lambda: not desk.commits.num_running)
    desk.ask(folder, 95)
    assert soon(lambda: ("CheckpointCommitted", 95) in desk.heard(1))


def test_of_what_the_run_has_gone_back_behind_nothing_is_told(folder):
    desk = Desk(folder)
    folder.guarded = slow = Slow(folder.guarded)
    slow.gates[ref_of(20)] = gate = threading.Event()
    desk.ask(folder, 20)
    assert soon(lambda: slow.hung)
    desk.stands.discard(1)
    gate.set()
    desk.ask(folder, 30, generation=2)
    assert desk.heard(1) == [("CheckpointCommitted", 30)]
    assert steps(folder) == [30]


def test_a_mesh_that_goes_back_leaves_a_mark_before_anything_is_committed_of_it(folder):
    """control A12: nothing of storage told that step 25 lies on an abandoned timeline."""
    desk = Desk(folder)
    for step in (20, 25):
        desk.ask(folder, step)
        desk.heard(step // 20)
    assert soon(lambda: steps(folder) == [25, 20])
    desk.commits.begin(desk.spec, form(22, 2))
    assert desk.synced == 1
    desk.ask(folder, 30, generation=2)
    assert soon(lambda: steps(folder) == [30, 20])


def test_a_mesh_that_goes_on_where_the_last_one_was_leaves_no_mark(folder):
    desk = Desk(folder)
    desk.ask(folder, 20)
    desk.heard(1)
    desk.commits.begin(desk.spec, form(23, 2))
    desk.ask(folder, 30, generation=2)
    desk.heard(2)
    assert not [path for path in folder.guarded.list("step-") if path.endswith("gone-back.json")]


def test_a_mark_is_put_once(folder):
    go_back(folder.guarded, ref_of(20, 2))
    go_back(folder.guarded, ref_of(20, 2))
    assert folder.guarded.list("step-") == [f"{ref_of(20, 2).name}/gone-back.json"]
