"""What a worker decides, word for word."""

from seats import (
    broken,
    called,
    closed,
    copied,
    cut_short,
    fenced,
    formed,
    hear,
    leave,
    restored,
    seat,
    stepped,
    told,
    training,
    undone,
)

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
from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.seat import Stance
from remesh.parallel.state.root_manifest import ShardFile

FILE = ShardFile(name="rank-0-of-2.safetensors", size_bytes=1, digest="0")


def parked(generation=1, at_step=None, *, drained=False, held_in=0, records=()):
    return WorkerParked(
        worker="worker-0",
        generation=generation,
        at_step=at_step,
        drained=drained,
        held_in=held_in,
        records=tuple(records),
    )


def test_a_whole_life_forms_restores_trains_saves_and_leaves_after_its_last_step():
    one = seat(last_step=3)
    assert hear(one, called()) == [do.BuildMesh(generation=1)]
    duties = hear(one, formed())
    assert told(duties) == [WorkerFormed(worker="worker-0", generation=1, form_s=0.0)]
    assert undone(duties) == [do.RestoreState(generation=1)]
    duties = hear(one, restored())
    assert told(duties) == [
        WorkerRestored(worker="worker-0", generation=1, at_step=0, restore_s=0.0)
    ]
    assert undone(duties) == [
        do.BeginSteps(generation=1),
        do.Train(generation=1, step=1, leave=False, save=False),
    ]
    first, second, third = (stepped(step) for step in (1, 2, 3))
    assert told(hear(one, first)) == [
        StepsDone(worker="worker-0", generation=1, records=(first.record,))
    ]
    duties = hear(one, second)
    assert [type(duty) for duty in duties] == [do.TellIt, do.CopyPart]  # its steps before its files
    assert told(duties)[0].records == (second.record,)
    assert undone(hear(one, copied())) == [do.Train(generation=1, step=3, leave=False, save=False)]
    assert undone(hear(one, third)) == [do.CopyPart(generation=1, step=3)]
    assert hear(one, copied()) == [do.CloseGroups(generation=1)]
    steps = [first.record, second.record, third.record]
    assert told(hear(one, closed(at_step=3))) == [
        parked(at_step=3, drained=True, held_in=1, records=steps)
    ]
    assert one.stance is Stance.PARKED


def test_a_fence_is_acknowledged_by_a_parked_worker_only():
    """M02: whoever comes second, the parking or the request, has it acknowledged, and once."""
    late = training(seat())
    assert hear(late, fenced()) == [do.RaiseFence(generation=1)]
    assert hear(late, cut_short()) == [do.CloseGroups(generation=1)]
    assert told(hear(late, closed(at_step=0))) == [parked(at_step=0, held_in=1)]
    early = training(seat())
    assert told(hear(early, broken(), closed(at_step=0))) == [
        GroupBroken(worker="worker-0", generation=1, error="a peer is gone")
    ]
    assert hear(early, fenced()) == [
        do.RaiseFence(generation=1),
        do.TellIt(event=parked(at_step=0, held_in=1)),
    ]


def test_a_step_whose_vote_has_passed_is_finished_and_told_though_the_fence_is_up():
    one = training(seat())
    first = stepped(1)
    duties = hear(one, fenced(), first)
    assert undone(duties) == [do.CloseGroups(generation=1)]
    assert told(hear(one, closed(at_step=1))) == [
        parked(at_step=1, held_in=1, records=[first.record])
    ]


def test_a_mesh_that_was_fenced_before_it_was_called_is_never_formed():
    one = seat()
    assert told(hear(one, fenced(2))) == [parked(2)]
    assert hear(one, called(2)) == hear(one, called(1)) == []
    assert hear(one, called(3)) == [do.BuildMesh(generation=3)]


def test_who_is_called_twice_is_in_one_mesh():
    one = seat()
    hear(one, called())
    assert hear(one, called()) == []
    hear(one, formed())
    assert hear(one, called()) == []


def test_a_newer_mesh_ends_the_one_whose_end_was_not_heard():
    one = training(seat())
    assert hear(one, called(3)) == [do.RaiseFence(generation=1)]
    assert hear(one, cut_short()) == [do.CloseGroups(generation=1)]
    assert hear(one, closed(at_step=0)) == [do.BuildMesh(generation=3)]
    again = training(seat())
    hear(again, called(3), fenced(3), cut_short())
    assert told(hear(again, closed(at_step=0))) == [parked(3, at_step=0, held_in=1)]


def test_whoever_is_called_by_a_newer_mesh_says_nothing_more_of_the_old_one():
    one = training(seat())
    hear(one, called(3), broken())
    assert hear(one, closed(at_step=0)) == [do.BuildMesh(generation=3)]


def test_a_wish_to_leave_goes_into_the_votes_from_the_next_step_on():
    one = training(seat())
    assert hear(one, leave(save=True)) == []
    assert undone(hear(one, stepped(1)))[-1:] == [
        do.Train(generation=1, step=2, leave=True, save=True)
    ]
    assert undone(hear(training(seat()), leave(2), stepped(1)))[-1:] == [
        do.Train(generation=1, step=2, leave=False, save=False)
    ]


def test_a_wish_is_forgotten_with_its_generation():
    one = training(seat())
    hear(one, leave(), fenced(), cut_short(), closed(at_step=0), called(2), formed(2))
    assert undone(hear(one, restored(2)))[-1] == do.Train(
        generation=2, step=1, leave=False, save=False
    )


def test_all_leave_where_the_vote_says_so_after_a_save_if_it_says_that_too():
    one = training(seat())
    assert undone(hear(one, stepped(1, drain=True))) == [do.CloseGroups(generation=1)]
    assert [event.drained for event in told(hear(one, closed(at_step=1)))] == [True]
    two = training(seat())
    assert undone(hear(two, stepped(1, drain=True, save=True))) == [
        do.CopyPart(generation=1, step=1)
    ]
    assert hear(two, copied()) == [do.CloseGroups(generation=1)]
    three = training(seat())
    hear(three, stepped(1, save=True))
    assert undone(hear(three, copied())) == [
        do.Train(generation=1, step=2, leave=False, save=False)
    ]


def test_who_was_fenced_while_it_drained_parks_once():
    one = training(seat())
    last = stepped(1, drain=True)
    hear(one, last, fenced())
    assert told(hear(one, closed(at_step=1))) == [
        parked(at_step=1, drained=True, held_in=1, records=[last.record])
    ]


def test_snapshots_are_what_the_vote_says():
    one = training(seat())
    assert undone(hear(one, stepped(1, stable_step=0, snapshot=True)))[:2] == [
        do.NoteStable(step=0),
        do.KeepSnapshot(step=1),
    ]
    over = training(seat())
    assert undone(hear(over, fenced(), stepped(1, stable_step=0, snapshot=True))) == [
        do.CloseGroups(generation=1)
    ]


def test_groups_are_closed_before_it_is_told_that_they_broke():
    one = seat()
    assert hear(one, called(), broken(error="timed out")) == [do.CloseGroups(generation=1)]
    assert told(hear(one, closed())) == [
        GroupBroken(worker="worker-0", generation=1, error="timed out")
    ]
    assert one.stance is Stance.PARKED


def test_state_that_cannot_be_restored_is_told_with_its_source():
    one = seat()
    hear(one, called(), formed())
    duties = hear(one, heard.StateMissing(generation=1, name="step-4", error="hash differs"))
    assert told(duties) == [
        RestoreFailed(worker="worker-0", generation=1, name="step-4", error="hash differs")
    ]
    assert undone(duties) == [do.CloseGroups(generation=1)]
    assert hear(one, closed()) == []


def test_another_step_than_the_mesh_goes_on_from_is_told_and_not_trained():
    one = seat()
    hear(one, called(from_step=3), formed())
    duties = hear(one, restored(at_step=2))
    assert [event.at_step for event in told(duties)] == [2]
    assert undone(duties) == [do.CloseGroups(generation=1)]


def test_who_was_fenced_before_it_restored_holds_what_it_held():
    """M20: the controller has to know which generation the state is of."""
    one = training(seat())
    hear(one, stepped(1), fenced(), cut_short(), closed(at_step=1), called(2), formed(2))
    hear(one, fenced(2), cut_short(2))
    assert told(hear(one, closed(2, at_step=1))) == [parked(2, at_step=1, held_in=1)]


def test_a_last_step_that_was_not_saved_is_saved_again():
    one = seat(last_step=3)
    hear(one, called(from_step=3), formed())
    assert undone(hear(one, restored(at_step=3))) == [
        do.BeginSteps(generation=1),
        do.CopyPart(generation=1, step=3),
    ]
    assert hear(one, copied()) == [do.CloseGroups(generation=1)]


def test_a_fence_cuts_the_wait_for_storage_short_and_what_was_copied_is_told_all_the_same():
    """A11."""
    one = training(seat(save_every=1))
    hear(one, stepped(1), copied(), stepped(2), fenced())
    assert hear(one, cut_short()) == [do.CloseGroups(generation=1)]
    assert isinstance(told(hear(one, closed(at_step=2)))[0], WorkerParked)
    written = heard.FileWritten(generation=1, step=1, files=(FILE,))
    assert told(hear(one, written)) == [
        FilesSaved(worker="worker-0", generation=1, step=1, files=(FILE,))
    ]
    assert hear(one, written) == []
    assert hear(one, heard.FileWritten(generation=1, step=2, files=(FILE,))) == []


def test_a_file_may_be_written_before_the_copy_is_heard_of():
    one = training(seat(save_every=1))
    written = heard.FileWritten(generation=1, step=1, files=(FILE,))
    assert [type(event) for event in told(hear(one, stepped(1), written))] == [FilesSaved]
    assert undone(hear(one, copied())) == [do.Train(generation=1, step=2, leave=False, save=False)]


def test_a_file_that_cannot_be_written_is_told_and_ends_nothing():
    one = training(seat(save_every=1))
    hear(one, stepped(1), copied())
    lost = heard.FileLost(generation=1, step=1, error="no space")
    assert told(hear(one, lost)) == [
        SaveFailed(worker="worker-0", generation=1, step=1, error="no space")
    ]
    assert one.stance is Stance.TRAINING


def test_a_parked_worker_writes_all_that_it_holds_when_it_is_asked_to():
    """A4."""
    one = training(seat())
    hear(one, stepped(1), fenced(), cut_short(), closed(at_step=1))
    asked = heard.AskedToSave(generation=1, step=1)
    assert hear(one, asked) == [do.WriteHeld(generation=1, step=1)]
    assert hear(one, asked) == []
    written = heard.FileWritten(generation=1, step=1, files=(FILE,), all_held=True)
    assert [type(event) for event in told(hear(one, written))] == [FilesSaved]


def test_who_holds_another_step_or_trains_says_that_it_saves_nothing():
    one = training(seat())
    asked = heard.AskedToSave(generation=1, step=1)
    assert [type(event) for event in told(hear(one, asked))] == [SaveFailed]
    hear(one, fenced(), cut_short(), closed(at_step=0))
    [failed] = told(hear(one, asked))
    assert "no state at step 1 that stands still, but that at step 0" in failed.error
    hear(one, called(2))
    assert [type(event) for event in told(hear(one, asked))] == [SaveFailed]


def test_a_mesh_that_came_to_nothing_changes_nothing_of_what_is_held_and_saved():
    """Seed 4090: a run that stopped lost it all, as the order to save it named the mesh before."""
    one = training(seat())
    hear(one, stepped(1), fenced(), cut_short(), closed(at_step=1))
    hear(one, called(2), broken(2), closed(2, at_step=1))
    asked = heard.AskedToSave(generation=1, step=1)
    assert hear(one, asked) == [do.WriteHeld(generation=1, step=1)]


def test_a_late_order_to_save_a_state_that_was_abandoned_saves_no_other_under_its_name():
    one = training(seat())
    hear(one, fenced(), cut_short(), closed(at_step=0), called(2), formed(2), restored(2, 0))
    hear(one, stepped(1, 2), fenced(2), cut_short(2), closed(2, at_step=1))
    assert hear(one, heard.AskedToSave(generation=1, step=1)) == []
    assert hear(one, heard.AskedToSave(generation=2, step=1)) != []


def test_the_end_of_another_generation_is_acknowledged_without_the_steps_of_this_one():
    one = training(seat())
    first = stepped(1)
    hear(one, first, broken(), closed(at_step=1))
    assert [event.records for event in told(hear(one, fenced(2, heard_step=9)))] == [()]
    assert [event.records for event in told(hear(one, fenced(1)))] == [(first.record,)]


def test_an_end_that_was_acknowledged_is_not_said_again_of_the_next_mesh():
    one = training(seat())
    hear(one, fenced(), cut_short(), closed(at_step=0), called(2), broken(2))
    assert [type(event) for event in told(hear(one, closed(2, at_step=0)))] == [GroupBroken]


def test_nothing_that_may_change_is_saved_as_what_is_held():
    one = training(seat())
    [failed] = told(hear(one, heard.AskedToSave(generation=1, step=0)))
    assert isinstance(failed, SaveFailed)


def test_what_was_not_reported_yet_is_told_before_it_leaves_at_a_boundary():
    one = training(seat(save_every=100))
    last = stepped(2, now_s=0.1, drain=True)
    duties = hear(one, stepped(1), last)
    assert told(duties) == [StepsDone(worker="worker-0", generation=1, records=(last.record,))]
    assert undone(duties) == [do.CloseGroups(generation=1)]
