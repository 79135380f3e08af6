"""Events that came together share a line, and come back as they were; each has its own place."""

import json
import threading
from dataclasses import replace

import pytest
from control_drive import Drive
from control_values import options, records
from drawn_events import Draw
from test_set_aside import BAD, JOINED, FaultyMachine
from waiting import PATIENCE_S

from remesh.actors.controller.careful import CarefulMachine
from remesh.actors.controller.inbox import BURST, EVERY_S, Inbox, StormPace
from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import EVERY, SnapshotWriter, replayed
from remesh.orchestrator.accounts.snapshot import Snapshot
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import LinePlace, Remembered
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.together import apart, together

RANKS = range(8)


def formed(number, form_s=0.1):
    return ev.WorkerFormed(worker=f"worker-{number}", generation=300, form_s=form_s)


def lines_of(events):
    return [line for line, _ in journal.encode_all(events, 7.0)]


def test_events_of_one_kind_are_a_line_that_says_once_what_they_share():
    events = [formed(number) for number in RANKS]
    (line,) = lines_of(events)
    assert list(journal.read([line])) == [(event, 7.0) for event in events]
    assert line.count("300") == line.count("0.1") == line.count("worker-") == 1


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_together_comes_back_in_its_order(seed):
    drive = Drive()
    draw = Draw(seed, drive.controller, devices=False)
    events = [draw.event(0.0) for _ in range(30)]
    events = [again for event in events for again in (event, event, replace(event))]
    assert [event for event, _ in journal.read(lines_of(events))] == events


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1.0, float("nan")), (1.0, 1), (5e-324, 0.0)]
)
def test_numbers_that_are_alike_but_for_a_bit_stay_apart(one, other):
    events = [formed(1, one), formed(2, other)]
    (line,) = lines_of(events)
    found = [event.form_s for event, _ in journal.read([line])]
    assert list(map(repr, found)) == [repr(one), repr(float(other))]


@pytest.mark.parametrize(
    "names", [("", "a"), ("a", "ab"), ("a b", "a c"), ("ü1", "ü2"), ("x", "y"), ("", "")]
)
def test_texts_come_back_whatever_they_have_in_common(names):
    events = [ev.VaultUp(node=name, address=str(at)) for at, name in enumerate(names)]
    assert apart(together(events)) == events


def test_a_few_records_told_by_many_are_a_line_with_each_of_them_once():
    told = records(1, 2, 1.0)
    parked = [
        ev.WorkerParked(
            worker=f"worker-{number}",
            generation=1,
            at_step=2,
            drained=False,
            held_in=1,
            records=(told, told[:1], ())[number % 3],
        )
        for number in range(9)
    ]
    (line,) = lines_of(parked)
    assert [event for event, _ in journal.read([line])] == parked
    assert line.count('"loss"') == 3


def test_columns_that_do_not_fit_are_refused():
    there = together([formed(1), formed(2)])
    with pytest.raises(CodecError, match="columns of one length"):
        apart(replace(there, each={**there.each, "form_s": [1.0]}))
    with pytest.raises(CodecError, match="expected a column"):
        apart(replace(there, each={"worker": 7}))
    for which in ([0, 1], [-1, 0], [True, 0]):
        with pytest.raises(CodecError, match="expected one of 1"):
            apart(replace(there, each={"worker": {"values": ["w"], "which": which}}))
    line = json.dumps({"at_s": 1.0, "told": {"is": "Together", "same": {}, "each": {}}})
    with pytest.raises(journal.JournalError, match="columns of one length"):
        list(journal.read([line]))


class Slow:
    """A journal whose first write lasts until it is let go."""

    def __init__(self, writer):
        self.writer = writer
        self.is_writing = threading.Event()
        self.goes_on = threading.Event()
        self.writes = []

    def events(self, events, now_s):
        self.writes.append(len(events))
        self.is_writing.set()
        self.goes_on.wait(PATIENCE_S)
        return self.writer.events(events, now_s)


def test_what_comes_while_the_journal_is_written_is_one_write_and_one_line(tmp_path):
    writer = JournalWriter(tmp_path, 1, options())
    slow = Slow(writer)
    inbox = Inbox(slow, lambda: 7.0)
    threads = [
        threading.Thread(target=inbox.put_all, args=([formed(node), formed(node + 10)],))
        for node in range(5)
    ]
    threads[0].start()
    slow.is_writing.wait(PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    while len(inbox._told) < 8:
        pass
    slow.goes_on.set()
    for thread in threads:
        thread.join()
    assert slow.writes == [2, 8]
    (found,) = read_history(tmp_path).starts
    assert found.num_lines == 2
    taken = [(inbox.get(0.0), inbox.place, inbox.ends_line) for _ in range(10)]
    assert [place for _, place, _ in taken] == [
        *(LinePlace(0, nth) for nth in range(2)),
        *(LinePlace(1, nth) for nth in range(8)),
    ]
    assert [number for number, (_, _, ends) in enumerate(taken) if ends] == [1, 9]
    assert [told for told, _, _ in taken] == list(journal.read(found.lines))


class Full:
    def events(self, events, now_s):  # noqa: ARG002 - as a journal's
        raise OSError(28, "No space left on device")


def test_nobody_is_told_that_an_event_was_heard_that_is_not_in_the_journal():
    inbox = Inbox(Full(), lambda: 7.0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            inbox.put_all([formed(1)])


def test_an_event_that_cannot_be_encoded_takes_no_other_along(tmp_path):
    inbox = Inbox(JournalWriter(tmp_path, 1, options()), lambda: 7.0)
    inbox.put_all([formed(1), formed("two", form_s="long"), formed(3)])
    assert [inbox.get(0.0)[0].worker for _ in range(2)] == ["worker-1", "worker-3"]
    assert inbox.get(0.0) is None


def test_one_of_a_line_is_set_aside_and_the_others_count(tmp_path):
    writer, machine = JournalWriter(tmp_path, 1, options()), FaultyMachine(options())
    careful = CarefulMachine(machine, writer, tmp_path)
    scales = [ev.ScaleRequested(nodes=nodes) for nodes in (5, 7, BAD.nodes)]
    events = [JOINED, ev.RunStarted(), *scales]
    places = writer.events(events, 1.0)
    answers = [
        careful.handle(event, 1.0, place) for event, place in zip(events, places, strict=True)
    ]
    assert [answer is None for answer in answers] == [False, False, False, False, True]
    (found,) = read_newest(tmp_path).starts
    assert journal.set_aside(found.lines) == {LinePlace(2, 2)}
    assert found.replay().state == machine.state
    assert machine.state.wanted_nodes == 7


def test_a_snapshot_waits_for_the_end_of_a_line(tmp_path):
    """It says after which line it stands: the rest of a line would be handled twice or never."""
    writer, machine = JournalWriter(tmp_path, 1, options()), Controller(options())
    inbox = Inbox(writer, lambda: 7.0)
    tally = Tally()
    snapshots = SnapshotWriter(Snapshot(state=machine.state, tally=tally), inbox, writer)
    for _ in range(EVERY - 1):
        snapshots.after_an_event()
    joined = [ev.NodeJoined(node=f"n{number}", slots=1) for number in range(5)]
    inbox.put_all(joined)
    for _ in joined:
        event, now_s = inbox.get(0.0)
        machine.handle(event, now_s)
        tally.note(event, now_s, machine.state)
        snapshots.after_an_event()
    (found,) = read_history(tmp_path).starts
    (there,) = (e.told for e in journal.entries(found.lines) if isinstance(e.told, Remembered))
    assert there.after == 1
    assert replayed([found]).state == machine.state


def test_few_never_wait_and_a_storm_writes_at_its_pace():
    pace = StormPace()
    waits = [pace.wait_s(10.0) for _ in range(BURST + 3)]
    assert waits[:BURST] == pytest.approx([0.0] * BURST)
    assert waits[BURST:] == pytest.approx([EVERY_S, 2 * EVERY_S, 3 * EVERY_S])
    assert pace.wait_s(10.0 + 3 * EVERY_S) == pytest.approx(EVERY_S)
    assert pace.wait_s(20.0) == 0.0


def test_words_are_paced_and_what_the_controller_sees_itself_is_not(tmp_path):
    pauses = []
    inbox = Inbox(JournalWriter(tmp_path, 1, options()), lambda: 7.0, pauses.append)
    for number in range(2 * BURST):
        inbox.put(formed(number))
    assert pauses == []
    for number in range(2 * BURST):
        inbox.put_all([formed(number)])
    assert len(pauses) > 0
