"""Every state that a worker's machine can be in, against every word: nothing surprises it."""

from copy import copy
from functools import cache
from typing import get_args

from seats import (
    LASTING,
    broken,
    called,
    closed,
    copied,
    cut_short,
    fenced,
    formed,
    leave,
    restored,
    seat,
    stepped,
    told,
)

from remesh.orchestrator.control.words.events import (
    FilesSaved,
    SaveFailed,
    StepsDone,
    WorkerParked,
)
from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.seat import ENDS, Stance

ABOUT_FILES = (FilesSaved, SaveFailed)
ABOUT_WRITES = (heard.FileWritten, heard.FileLost)
WHICH_COUNT = (do.BuildMesh, do.RestoreState, do.BeginSteps, do.Train, do.KeepSnapshot)


def words(generation):
    """Each kind of word at least once."""
    return [
        called(generation),
        fenced(generation),
        leave(generation, save=True),
        formed(generation),
        restored(generation, 0),
        restored(generation, 3),
        heard.StateMissing(generation=generation, name="", error="hash differs"),
        stepped(1, generation, stable_step=0, snapshot=True),
        stepped(1, generation, drain=True, save=True),
        copied(generation),
        broken(generation),
        cut_short(generation),
        closed(generation, 1),
        closed(generation, None),
        heard.AskedToSave(generation=generation, step=1),
        heard.FileWritten(generation=generation, step=1, files=()),
        heard.FileLost(generation=generation, step=1, error="no space", all_held=True),
    ]


WORDS = [*words(1), *words(2)]
LEADING = [word for word in WORDS if not hasattr(word, "all_held") and word != WORDS[14]]


def twin(machine):
    other = copy(machine)
    other.writing = set(machine.writing)
    other.reports = copy(machine.reports)
    other.reports.records = other.reports.records.copy()
    other.reports.unsent = list(other.reports.unsent)
    return other


def key(machine):
    """All that decides what comes next: not which steps are remembered."""
    return tuple(
        frozenset(machine.writing) if name == "writing" else getattr(machine, name)
        for name in machine.__slots__
        if name != "reports"
    )


@cache
def states():
    """Every state that these words lead to, in meshes of two generations."""
    first = seat(last_step=3)
    found = {key(first): first}
    new = [first]
    while new:
        machine = new.pop()
        for word in LEADING:
            after = twin(machine)
            after.handle(word)
            if key(after) not in found:
                found[key(after)] = after
                new.append(after)
    return list(found.values())


def steps_of_every_state(chosen):
    """Each state before and after each of these words, with what the word led to."""
    for before in states():
        for word in chosen:
            after = twin(before)
            yield before, word, after, after.handle(word)


def test_each_kind_of_word_is_tried_in_each_kind_of_state():
    kinds = {type(word) for word in WORDS}
    assert kinds == set(get_args(heard.SeatOrder)) | set(get_args(heard.DutyEnded))
    assert set(ENDS) == set(get_args(heard.DutyEnded))
    assert {machine.stance for machine in states()} == set(Stance)
    assert len(states()) > 500


def test_one_duty_at_a_time_takes_a_while_and_it_is_the_last_of_what_a_word_leads_to():
    under_way = {
        Stance.FORMING: do.BuildMesh,
        Stance.RESTORING: do.RestoreState,
        Stance.TRAINING: do.Train,
        Stance.SAVING: do.CopyPart,
        Stance.LEAVING: do.CloseGroups,
    }
    for before, word, after, duties in steps_of_every_state(WORDS):
        lasting = [duty for duty in duties if isinstance(duty, LASTING)]
        if lasting:
            assert lasting == duties[-1:], (before, word)
            assert type(lasting[0]) is under_way[after.stance]
            assert before.stance is Stance.PARKED or type(word) in ENDS
        else:
            assert after.stance in (before.stance, Stance.PARKED), (before, word)


def test_only_a_parked_worker_says_that_it_is():
    for before, word, after, duties in steps_of_every_state(WORDS):
        parked = [event for event in told(duties) if isinstance(event, WorkerParked)]
        if parked:
            entered = isinstance(duties[-1], do.BuildMesh)
            assert after.stance is Stance.PARKED or entered, (before, word)
            assert len(parked) == 1 or (before.drained and parked[0].drained)


def test_no_word_of_an_older_generation_changes_anything():
    """But that it is to save what it holds from there."""
    for before, word, after, duties in steps_of_every_state(words(1)):
        holds = isinstance(word, heard.AskedToSave) and before.held_in < 2
        if before.generation == 2 and not holds:
            assert key(after) == key(before) or isinstance(word, ABOUT_WRITES)
            assert all(isinstance(duty, do.TellIt) for duty in duties), (before, word)
            assert all(isinstance(event, ABOUT_FILES) for event in told(duties))


def test_what_is_over_trains_saves_and_restores_nothing_more_and_tells_nothing_that_counts():
    """A trainer that is continued at any moment after its fence, whatever it was about to say."""
    for before, word, after, duties in steps_of_every_state(WORDS):
        if before.fenced < before.generation or before.stance is Stance.PARKED:
            continue
        if isinstance(word, heard.Called) or after.generation > before.generation:
            continue
        assert not [duty for duty in duties if isinstance(duty, WHICH_COUNT)], (before, word)
        assert not [duty for duty in duties if isinstance(duty, do.CopyPart | do.NoteStable)]
        counting = [event for event in told(duties) if not isinstance(event, ABOUT_FILES)]
        for event in counting:
            assert isinstance(event, WorkerParked | StepsDone), (before, word)


def test_every_state_is_left_within_two_words_once_it_is_fenced():
    for before in states():
        machine = twin(before)
        duties = machine.handle(fenced(9))
        if machine.stance not in (Stance.PARKED, Stance.LEAVING):
            machine.handle(cut_short(machine.generation))
        if machine.stance is Stance.LEAVING:
            duties = machine.handle(closed(machine.generation, None))
        assert machine.stance is Stance.PARKED, before
        assert [event.generation for event in told(duties)][-1:] == [9]


def test_a_later_mesh_is_entered_from_every_state():
    for before in states():
        machine = twin(before)
        machine.handle(called(9))
        if machine.stance not in (Stance.PARKED, Stance.LEAVING, Stance.FORMING):
            machine.handle(cut_short(machine.generation))
        elif machine.stance is Stance.FORMING and machine.generation < 9:
            machine.handle(broken(machine.generation))
        if machine.stance is Stance.LEAVING:
            machine.handle(closed(machine.generation, None))
        assert (machine.generation, machine.stance) == (9, Stance.FORMING), before
