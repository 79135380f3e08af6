"""A run whose folder is gone has its journal where its checkpoints are."""

from collections import Counter
from dataclasses import replace

import pytest
from control_values import options
from run_specs import claimed_spec

from remesh.actors.controller.takeover import begin
from remesh.actors.history.brought_back import journal_brought_back
from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.segments import MANY, Segments, bring_back
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.actors.storage.file_storage import LocalStorage
from remesh.orchestrator.control.words import events as ev

OPTIONS = options()


class Counted(LocalStorage):
    """Counts what is asked of it; with `full` it takes nothing."""

    def __init__(self, root):
        super().__init__(root)
        self.calls, self.full = Counter(), False

    def get(self, path):
        self.calls[path] += 1
        return super().get(path)

    def list(self, prefix=""):
        self.calls["list"] += 1
        return super().list(prefix)

    def put_if_absent(self, path, data, head=None):
        if self.full:
            raise OSError(28, "No space left on device")
        self.calls["put"] += 1
        return super().put_if_absent(path, data, head)


@pytest.fixture
def bucket(tmp_path):
    return Counted(tmp_path / "bucket")


def lines(path):
    [start] = read_history(path).starts
    assert start.damage is None
    return start.lines


def carried(tmp_path, bucket, times):
    """A journal that was carried so often, a few lines at a time."""
    writer = JournalWriter(tmp_path / "here", 1, OPTIONS)
    segments = Segments(bucket, writer)
    for number in range(times):
        writer.event(ev.NodeJoined(node=f"n{number}", slots=1), float(number))
        segments.carry()
    return writer, segments


def test_the_journal_comes_back_from_the_pieces_in_the_storage(tmp_path, bucket):
    writer, segments = carried(tmp_path, bucket, 5)
    writer.event(ev.Tick(), 9.0)  # not carried any more
    assert bring_back(bucket, tmp_path / "there") == [tmp_path / "there" / "journal/000001.jsonl"]
    assert lines(tmp_path / "there") == lines(tmp_path / "here")[:-1]
    segments.carry()
    bring_back(bucket, tmp_path / "there")
    assert lines(tmp_path / "there") == lines(tmp_path / "here")


def test_a_long_run_has_few_pieces_and_each_is_read_once(tmp_path, bucket):
    """Its cost does not grow with the steps that are run."""
    times = 3 * MANY**2 // 2
    carried(tmp_path, bucket, times)
    assert len(bucket.list("journal/")) <= 2 * MANY
    assert bucket.calls["put"] <= times * (1 + 2 / MANY)
    bucket.calls.clear()
    bring_back(bucket, tmp_path / "there")
    assert lines(tmp_path / "there") == lines(tmp_path / "here")
    assert bucket.calls.pop("list") == 1
    assert set(bucket.calls.values()) == {1}


def test_pieces_that_overlap_or_leave_a_gap_tell_as_much_as_they_prove(tmp_path, bucket):
    """A put whose answer was lost, or small pieces that nobody deleted; one that is gone."""
    carried(tmp_path, bucket, 8)
    whole = (tmp_path / "here" / "journal/000001.jsonl").read_bytes()
    bucket.put_if_absent("journal/start-1/000001.000000000000-000000000700.jsonl", whole[:700])
    bring_back(bucket, tmp_path / "there")
    assert lines(tmp_path / "there") == lines(tmp_path / "here")
    bucket.delete(bucket.list("journal/")[4])
    bring_back(bucket, tmp_path / "elsewhere")
    found = lines(tmp_path / "elsewhere")
    assert found == lines(tmp_path / "here")[: len(found)]
    assert 0 < len(found) < 8


def test_nothing_is_read_where_the_folder_has_as_much(tmp_path, bucket):
    carried(tmp_path, bucket, 3)
    bucket.calls.clear()
    assert bring_back(bucket, tmp_path / "here") == []
    assert bucket.calls == {"list": 1}


def test_what_did_not_fit_is_carried_as_soon_as_there_is_room(tmp_path, bucket):
    writer, segments = carried(tmp_path, bucket, 2)
    bucket.full = True
    writer.event(ev.Tick(), 9.0)
    with pytest.raises(OSError, match="No space left"):
        segments.carry()
    bucket.full = False
    writer.event(ev.Tick(), 10.0)
    segments.carry()
    bring_back(bucket, tmp_path / "there")
    assert lines(tmp_path / "there") == lines(tmp_path / "here")


def run_on(tmp_path, machine):
    return RunFolder(tmp_path / machine, str(tmp_path / "bucket"))


def handled(begun, *events):
    for event in events:
        begun.journal.event(event, 1.0e9)
        begun.machine.handle(event, 1.0e9)


def test_a_start_on_another_machine_says_from_when_on_nothing_is_proven(tmp_path):
    one = run_on(tmp_path, "one")
    begun = begin(claimed_spec(one), OPTIONS, one)
    handled(begun, ev.NodeJoined(node="n", slots=1))
    begun.prove()
    handled(begun, ev.NodeJoined(node="m", slots=1))
    two = run_on(tmp_path, "two")
    said = journal_brought_back(two.guarded, two.path)
    assert "what start 1 did after 2001-09-09 01:46:40 UTC is not proven" in said
    assert journal_brought_back(two.guarded, two.path) is None
    again = begin(claimed_spec(two, "cd34"), OPTIONS, two)
    assert again.machine.options.start == 2
    assert [start.nodes() for start in read_history(two.path).starts] == [{"n"}, set()]


def test_of_a_run_that_has_ended_everything_is_proven(tmp_path):
    one = run_on(tmp_path, "one")
    begun = begin(claimed_spec(one), OPTIONS, one)
    handled(begun, ev.RunStarted(), ev.StopRequested(reason="enough", at_once=True))
    begun.segments.start()
    begun.close_journal(60.0)
    two = run_on(tmp_path, "two")
    said = journal_brought_back(two.guarded, two.path)
    assert said is not None
    assert "not proven" not in said


def test_a_controller_takes_over_on_a_machine_that_has_nothing_of_the_run(tmp_path):
    one = run_on(tmp_path, "one")
    spec = claimed_spec(one)
    begun = begin(spec, OPTIONS, one)
    handled(begun, ev.RunStarted(), ev.NodeJoined(node="n", slots=1))
    begun.prove()
    two = run_on(tmp_path, "two")
    over = begin(replace(spec, folder=str(two.path)), OPTIONS, two)
    assert over.machine.state == begun.machine.state
    assert isinstance(over.events[0], ev.ControllerRestarted)
    assert "is not proven" in over.journal.announcements[-1]


def test_a_fresh_start_sets_the_pieces_aside_too(tmp_path, bucket):
    one = run_on(tmp_path, "one")
    begun = begin(claimed_spec(one), OPTIONS, one)
    begun.prove()
    set_aside(one.places)
    assert bucket.list("journal/") == []
    two = run_on(tmp_path, "two")
    assert journal_brought_back(two.guarded, two.path) is None


def test_a_run_whose_checkpoints_are_in_its_folder_has_its_journal_there_once(tmp_path):
    folder = RunFolder(tmp_path / "run")
    begun = begin(claimed_spec(folder), OPTIONS, folder)
    begun.prove()
    assert begun.segments is None
    assert folder.storage.list("journal/") == ["journal/000001.jsonl"]
