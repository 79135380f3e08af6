"""The trainer thread, with a rank and a storage that can be made to wait."""

import socket

import pytest
from trainer_fakes import Room, Workbench
from waiting import PATIENCE_S, soon

from remesh.actors.orders import SlotOrder, VaultOrder
from remesh.data.data_error import DataError
from remesh.data.digest import StepDigest
from remesh.orchestrator.control.words.events import (
    FilesSaved,
    GroupBroken,
    RestoreFailed,
    SaveFailed,
    StepsDone,
    WorkerFormed,
    WorkerParked,
    WorkerRestored,
)
from remesh.orchestrator.control.words.records import CheckpointState, PeerState, VaultSlot
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.plan.cut import Cut, Held
from remesh.parallel.plan.errors import GroupError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pipeline import Pipeline

SAVED = "step-00000002.gen-1.start-1"


def kinds(bench):
    return [type(event) for event in bench.said()]


def test_it_forms_restores_trains_saves_and_parks_after_the_last_step():
    bench = Workbench(steps=3, every=2)
    bench.form()
    parked = bench.heard(WorkerParked)
    bench.heard(FilesSaved, 2)
    assert (parked.at_step, parked.drained, parked.held_in) == (3, True, 1)
    assert bench.engine.stepped == [(1, 1), (1, 2), (1, 3)]
    assert kinds(bench)[:2] == [WorkerFormed, WorkerRestored]
    told = [record.step for event in bench.said(StepsDone) for record in event.records]
    assert told == [1, 2, 3]
    assert sorted(bench.storage.files) == [
        "step-00000002.gen-1.start-1/rank-0-of-1.safetensors",
        "step-00000003.gen-1.start-1/rank-0-of-1.safetensors",
    ]


def test_it_computes_by_the_schedule_and_the_pipeline_of_its_mesh():
    pipeline = Pipeline(ranks=2, chunks=2, layers=(1, 2, 1, 1))
    layout = Layout(dp=2, pp=2)
    rung = Rung(
        layout=layout,
        cut=Cut.of(layout, 1, pipeline=pipeline),
        schedule="interleaved",
        leaves=(5, 3),
    )
    bench = Workbench(steps=1, every=1)
    bench.form(rung=rung)
    bench.heard(WorkerParked)
    assert bench.engine.formed == ((5, 3), "interleaved", pipeline)


def test_it_lays_out_memory_until_it_is_called():
    room = Room()
    bench = Workbench(steps=1, every=1, room=room)
    assert room.begun.wait(PATIENCE_S)
    assert not room.left.is_set()
    bench.form()
    assert room.left.wait(PATIENCE_S)
    assert room.may(0, 0)
    assert not room.may(1 << 62, 0)  # no machine has as much
    bench.heard(WorkerParked)


def test_of_snapshots_nothing_is_asked_before_the_step_votes():
    bench = Workbench(steps=1, every=1)
    bench.stream.reads.shut()
    bench.form()
    bench.stream.reads.wait_for(1)
    assert ("ballot", 1) not in bench.log
    bench.stream.reads.open()
    bench.heard(WorkerParked)
    assert bench.log.count(("ballot", 1)) == 1


def test_its_groups_are_as_strict_as_its_node_says():
    for strict_groups in (True, False):
        bench = Workbench(strict_groups=strict_groups)
        bench.form()
        bench.heard(WorkerFormed)
        assert [rendezvous.strict for rendezvous in bench.met_at] == [strict_groups]


def test_a_fence_is_not_acknowledged_while_the_trainer_may_still_write_to_the_state():
    """M02."""
    bench = Workbench()
    bench.engine.update.shut()
    bench.form()
    bench.engine.update.wait_for(1)
    bench.trainer.fence(1, 0)
    assert bench.said(WorkerParked) == []
    bench.engine.update.open()
    parked = bench.heard(WorkerParked)
    assert (parked.at_step, [record.step for record in parked.records]) == (1, [1])
    assert bench.engine.stepped == [(1, 1)]


def test_a_fence_frees_a_trainer_from_a_peer_that_does_not_answer():
    bench = Workbench()
    bench.engine.peer_answers = False
    bench.form()
    assert soon(lambda: bench.engine.waits)
    bench.trainer.fence(1, 0)
    assert bench.heard(WorkerParked).at_step == 0
    assert bench.said(GroupBroken) == []


def test_groups_are_closed_before_anybody_hears_that_they_broke():
    bench = Workbench()
    bench.engine.fault = GroupError("connection reset", waited_for=(1,))
    bench.form()
    broken = bench.heard(GroupBroken)
    assert (broken.error, broken.waited_for) == ("connection reset", (1,))
    assert bench.log.index(("leave", 1)) < bench.log.index(broken)
    bench.trainer.fence(1, 0)
    assert bench.heard(WorkerParked).at_step == 0


def to_another_mesh(bench):
    """From one in which a peer hangs; how it parked there."""
    bench.engine.peer_answers = False
    bench.form()
    assert soon(lambda: bench.engine.waits)
    bench.engine.peer_answers = True
    bench.trainer.fence(1, 0)
    parked = bench.heard(WorkerParked)
    bench.form(2, restore=PeerState(step=0, source=0))
    return parked


def test_what_is_left_of_a_mesh_holds_up_no_word_but_the_next_mesh():
    bench = Workbench(steps=2)
    parked = to_another_mesh(bench)
    bench.heard(WorkerParked, 2)
    places = [bench.log.index(one) for one in (("leave", 1), parked, ("gone", 1), ("form", 2))]
    assert places == sorted(places)


def test_a_mesh_that_cannot_be_formed_is_told():
    bench = Workbench()
    bench.forms = False
    bench.form()
    assert bench.heard(GroupBroken).error == "timed out"


def test_a_fence_may_overtake_the_order():
    bench = Workbench()
    bench.trainer.fence(1, 0)
    bench.form(1)
    bench.form(2)
    bench.heard(WorkerParked, 2)
    assert [event.generation for event in bench.said(WorkerFormed)] == [2]


def test_it_goes_from_mesh_to_mesh_with_what_it_holds():
    bench = Workbench(steps=4)
    to_another_mesh(bench)
    assert bench.heard(WorkerParked, 2).at_step == 4
    assert {generation for generation, _ in bench.engine.stepped} == {2}


def test_a_drain_goes_into_the_next_vote_and_what_was_heard_is_not_told_again():
    bench = Workbench(steps=100)
    bench.engine.update.shut()
    bench.form()
    bench.engine.update.wait_for(1)
    bench.trainer.drain(1, save=True, heard_step=1)
    bench.engine.update.open()
    parked = bench.heard(WorkerParked)
    saved = bench.heard(FilesSaved)
    assert (parked.drained, parked.at_step, saved.step) == (True, 2, 2)
    assert [record.step for record in parked.records] == [2]


def test_an_error_of_the_data_ends_the_trainer_with_nothing_left_of_the_mesh():
    bench = Workbench()
    bench.stream.fault = DataError("block 7 is corrupt")
    bench.form()
    assert soon(lambda: bench.ended)
    assert isinstance(bench.ended[0], DataError)
    assert bench.log[-1] == ("leave", 1)


# A11: storage stands still, and a fence frees whoever waits for it.


def parked_without_storage(bench, generation=1):
    """The answer to a fence; nothing of the storage moves meanwhile."""
    bench.trainer.fence(generation, 0)
    return bench.heard(WorkerParked)


def test_who_waits_for_the_write_before_is_freed_and_that_write_is_told_later():
    bench = Workbench(steps=9, every=1)
    bench.storage.writes.shut()
    bench.form()
    bench.storage.writes.wait_for(1)
    assert soon(lambda: len(bench.engine.stepped) == 2)
    parked = parked_without_storage(bench)
    assert (parked.at_step, bench.said(FilesSaved)) == (2, [])
    bench.storage.writes.open()
    assert bench.heard(FilesSaved).step == 1
    assert [path for path in bench.storage.files if "step-00000002" in path] == []


def test_after_its_first_step_a_mesh_has_its_saves_laid_out():
    """speed 6: it is not what everybody waits for, and a save finds it done."""
    bench = Workbench(steps=10**6, every=10**6)
    saver = bench.trainer._hands._saver
    bench.engine.update.shut()
    bench.form()
    bench.engine.update.wait_for(1)
    assert not saver.is_prepared
    bench.engine.update.open()
    assert soon(lambda: saver.is_prepared)
    bench.trainer.fence(1, 0)
    bench.heard(WorkerParked)
    assert not saver.is_prepared


def test_who_reads_a_checkpoint_is_freed_and_holds_what_it_held():
    bench = Workbench(steps=2, every=2)
    bench.form()
    bench.heard(WorkerParked)
    bench.heard(FilesSaved)
    bench.storage.reads.shut()
    bench.form(2, restore=CheckpointState(step=1, name=SAVED), from_step=1)
    bench.storage.reads.wait_for(1)
    bench.trainer.fence(2, 0)
    parked = bench.heard(WorkerParked, 2)
    assert (parked.generation, parked.at_step, parked.held_in) == (2, 2, 1)
    assert bench.engine.state.tensor.tolist() == [2.0] * 4
    arrivals = bench.storage.reads.arrivals
    bench.storage.reads.open()
    bench.form(3, restore=PeerState(step=2, source=0), from_step=2)
    bench.heard(WorkerParked, 3)
    assert bench.storage.reads.arrivals == arrivals  # the read that was left ends at its block
    assert bench.engine.state.tensor.tolist() == [2.0] * 4


def test_who_holds_nothing_and_is_freed_amid_a_read_holds_nothing():
    bench = Workbench()
    bench.storage.reads.shut()
    bench.form(restore=CheckpointState(step=1, name=SAVED), from_step=1)
    bench.storage.reads.wait_for(1)
    assert parked_without_storage(bench).at_step is None


def test_a_checkpoint_that_is_gone_is_told_and_what_was_held_is_kept():
    bench = Workbench(steps=2)
    bench.form()
    bench.heard(WorkerParked)
    bench.form(2, restore=CheckpointState(step=1, name="step-00000009.gen-1.start-1"), from_step=9)
    assert bench.heard(RestoreFailed).name == "step-00000009.gen-1.start-1"
    bench.trainer.fence(2, 0)
    assert bench.heard(WorkerParked, 2).at_step == 2


def test_samples_that_are_in_memory_are_no_errand():
    """Two threads would wake each other for each microbatch."""
    bench = Workbench(steps=3)
    bench.stream.reads.shut()
    bench.stream.at_once = StepDigest()
    bench.form()
    assert bench.heard(WorkerParked).at_step == 3


def test_who_waits_for_samples_is_freed():
    bench = Workbench()
    bench.stream.reads.shut()
    bench.form()
    bench.stream.reads.wait_for(1)
    assert parked_without_storage(bench).at_step == 0
    bench.stream.reads.open()
    bench.form(2)
    assert bench.heard(WorkerParked, 2).at_step == 3


@pytest.fixture
def silent_vault():
    """Somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_who_reads_a_slot_is_freed_and_the_slot_is_not_blamed(silent_vault):
    bench = Workbench()
    slot = VaultSlot(vault="n1", held=Held(), generation=1, step=1)
    told = SlotOrder(slot=slot, address=silent_vault, token="t")
    bench.form(2, restore=PeerState(step=1, source=None), from_step=1, slots=(told,))
    bench.heard(WorkerFormed)
    parked_without_storage(bench, generation=2)
    assert bench.said(RestoreFailed) == []


def test_what_is_held_is_saved_once_it_stands_still():
    """A4."""
    bench = Workbench(steps=2)
    bench.form()
    bench.heard(WorkerParked)
    bench.heard(FilesSaved)
    bench.trainer.fence(1, 2)
    bench.storage.files.clear()
    bench.trainer.save_held(1, 2)
    assert bench.heard(FilesSaved, 2).step == 2
    assert list(bench.storage.files) == [f"{SAVED}/rank-0-of-1.safetensors"]
    bench.trainer.save_held(1, 1)
    assert "no state at step 1" in bench.heard(SaveFailed).error


def test_a_mesh_does_not_wait_for_a_storage_that_still_writes_what_was_held():
    bench = Workbench(steps=2)
    bench.form()
    bench.heard(FilesSaved)
    bench.heard(WorkerParked)
    bench.storage.writes.shut()
    bench.trainer.save_held(1, 2)
    bench.storage.writes.wait_for(2)
    bench.form(2)
    assert bench.heard(WorkerParked, 2).at_step == 2
    bench.storage.writes.open()
    bench.heard(FilesSaved, 3)


def test_snapshots_go_to_other_vaults_from_any_thread():
    bench = Workbench()
    bench.trainer.move(1, VaultOrder(own="a", buddy="b", token="t"))
    assert ("move", 1) in bench.log
