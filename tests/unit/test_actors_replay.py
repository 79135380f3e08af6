"""A controller that takes over begins at the newest snapshot, and stands where a replay leads."""

from dataclasses import replace

import pytest
from control_values import records
from counted import calls_made
from tallied_drive import tallied, through_everything

from remesh.actors.controller.inbox import Inbox
from remesh.actors.history import replay
from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.newest_journal import FIRST_READ_BYTES, read_newest
from remesh.actors.history.replay import SnapshotWriter, carried_by, newest_generation_of, replayed
from remesh.orchestrator.accounts.snapshot import Snapshot, encode
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import Remembered, says
from remesh.orchestrator.control.memory.carrying import carried_of
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.carried import Carried


def written(path, incarnation, drive, *, snapshot_after=None):
    writer = JournalWriter(path, incarnation, drive.controller.options)
    for index, (event, now_s) in enumerate(journal.read(drive.lines)):
        writer.event(event, now_s)
        if index == snapshot_after:
            done = replayed(read_history(path).starts)
            writer.snapshot(encode(Snapshot(state=done.state, tally=done.tally)), now_s)
    return writer


def test_a_snapshot_anywhere_leads_to_the_same_state_and_tally(tmp_path):
    drive = through_everything()
    for after in range(0, len(drive.lines), 3):
        written(tmp_path / str(after), 1, drive, snapshot_after=after)
        (found,) = read_history(tmp_path / str(after)).starts
        assert found.snapshot() is not None
        there = replayed([found])
        assert there.state == drive.state == found.replay().state
        assert there.tally == drive.tally


def test_the_tally_counts_on_over_all_starts(tmp_path):
    first = through_everything()
    written(tmp_path, 1, first, snapshot_after=20)
    second = tallied(5, tally=first.tally)
    written(tmp_path, 2, second, snapshot_after=9)
    there = replayed(read_history(tmp_path).starts)
    assert (there.state, there.tally) == (second.state, second.tally)
    assert there.tally.starts == 2


def test_a_snapshot_of_another_version_is_passed_over(tmp_path):
    drive = tallied(5)
    writer = written(tmp_path, 1, drive)
    values = encode(Snapshot(state=drive.state, tally=drive.tally))
    values["state"]["colour"] = "red"
    writer.snapshot(values, 99.0)
    there = replayed(read_history(tmp_path).starts)
    assert (there.state, there.tally) == (drive.state, drive.tally)


def test_without_a_journal_nothing_was_done():
    assert replayed([]).tally.starts == 0


def live(tmp_path, drive):
    writer = written(tmp_path, 1, drive)
    inbox = Inbox(writer, lambda: drive.now_s)
    there = Snapshot(state=drive.state, tally=drive.tally)
    return writer, inbox, SnapshotWriter(there, inbox, writer)


def count_of_snapshots(writer):
    return sum(says(line, Remembered) for line in writer.path.open())


def test_a_snapshot_is_taken_now_and_then(tmp_path):
    writer, inbox, snapshots = live(tmp_path, tallied(5))
    inbox.put(ev.Tick())
    inbox.get(0.0)
    for _ in range(replay.EVERY - 1):
        snapshots.after_an_event()
    assert count_of_snapshots(writer) == 0
    snapshots.after_an_event()
    snapshots.after_an_event()
    assert count_of_snapshots(writer) == 1


def test_a_recovery_is_not_held_up_by_a_snapshot_unless_it_has_no_end(tmp_path):
    """speed 7: one of 16,384 ranks took over a second, amid a recovery."""
    drive = tallied(5)
    drive.lose(drive.members[-1])
    assert drive.state.phase == "fencing"
    writer, inbox, snapshots = live(tmp_path, drive)
    inbox.put(ev.Tick())
    inbox.get(0.0)
    for _ in range(replay.LATEST - 1):
        snapshots.after_an_event()
    assert count_of_snapshots(writer) == 0
    snapshots.after_an_event()
    assert count_of_snapshots(writer) == 1


def test_of_a_journal_of_many_ranks_snapshots_are_the_smaller_part(tmp_path):
    """control C: a recovery of 16,384 ranks wrote six of ten megabytes each."""
    drive = tallied(5)
    for number in range(500):
        drive.do(ev.NodeJoined(node=f"n{number}", slots=1))
    writer, inbox, snapshots = live(tmp_path, drive)
    for _ in range(5):
        inbox.put(ev.Tick())
        inbox.get(0.0)
        for _ in range(replay.EVERY):
            snapshots.after_an_event()
    assert count_of_snapshots(writer) == 1
    for number in range(8000):
        inbox.put(ev.NodeJoined(node=f"n{number}", slots=1))
        inbox.get(0.0)
        snapshots.after_an_event()
    assert count_of_snapshots(writer) == 2


def test_while_a_snapshot_is_taken_events_come_in_and_are_replayed_behind_it(tmp_path):
    """control C: each of six snapshots of a generation held up all words of 16,384 ranks."""
    drive = tallied(5)
    _, inbox, snapshots = live(tmp_path, drive)
    inbox.put(ev.NodeJoined(node="handled", slots=1))
    drive.do(inbox.get(0.0)[0], after_s=0.0)
    inbox.put(ev.NodeJoined(node="waiting", slots=1))
    for _ in range(replay.EVERY):
        snapshots.after_an_event()
    inbox.put(ev.NodeJoined(node="later", slots=1))
    there = replayed(read_newest(tmp_path).starts)
    later = [ev.NodeJoined(node=name, slots=1) for name in ("waiting", "later")]
    drive.do(*later, after_s=0.0)
    assert (there.state, there.tally) == (drive.state, drive.tally)


def test_a_start_reads_the_end_of_the_newest_journal_and_no_more(tmp_path):
    """control A16: all of all journals was read and replayed at each start."""
    drive = tallied(5)
    writer = written(tmp_path, 1, drive)
    writer.path.write_bytes(writer.path.read_bytes()[:-9] + b"damaged!\n")
    fit = JournalWriter(tmp_path, 2, drive.controller.options)
    fit.snapshot(encode(Snapshot(state=drive.state, tally=drive.tally)), drive.now_s)
    fit.event(ev.NodeJoined(node="late", slots=1), drive.now_s)
    [found] = read_newest(tmp_path).starts
    assert (found.incarnation, len(found.lines), found.damage) == (2, 2, None)
    assert read_history(tmp_path).damage


def test_of_a_long_journal_no_event_before_the_snapshot_is_handled_again(tmp_path):
    drive = tallied(5, steps=10**6)
    for step in range(6, 3006):
        news = ev.StepsDone(worker="worker-0", generation=1, records=records(step, step, 1.0))
        drive.do(news)
    written(tmp_path, 1, drive).snapshot(
        encode(Snapshot(state=drive.state, tally=drive.tally)), drive.now_s
    )
    journals = read_history(tmp_path).starts
    there = []
    counts = calls_made(lambda: there.append(replayed(journals)))
    assert counts[Controller.handle.__qualname__] == 0
    assert (there[0].state, there[0].tally) == (drive.state, drive.tally)


def test_the_next_start_is_handed_what_the_newest_one_has_learned(tmp_path):
    """control A16: a checkpoint that could not be read was the first choice of the next start."""
    drive = tallied(5)
    drive.state.checkpoints.blame("checkpoint step-20")
    drive.state.budget.failures = 3
    writer = written(tmp_path, 1, tallied(5))
    writer.snapshot(encode(Snapshot(state=drive.state, tally=drive.tally)), drive.now_s)
    found = carried_by(read_newest(tmp_path).starts)
    assert found == carried_of(drive.state)
    assert found.bad_sources == (("checkpoint step-20", 1),)
    assert carried_by([]) == Carried()


def test_generations_go_on_from_the_last_mesh_that_was_formed(tmp_path):
    """Also from one of which no word has come."""
    drive = through_everything()
    writer = written(tmp_path, 1, drive)
    writer.snapshot(encode(Snapshot(state=drive.state, tally=drive.tally)), drive.now_s)
    (found,) = read_newest(tmp_path).starts
    assert newest_generation_of(found) == drive.state.last_generation > 1


def test_a_journal_that_nobody_can_replay_ends_no_later_start(tmp_path):
    """control A8."""
    written(tmp_path, 1, through_everything())
    [start] = read_history(tmp_path).starts
    assert carried_by([start]) != Carried()
    assert carried_by([replace(start, lines=("of another kind", *start.lines))]) == Carried()


def long(tmp_path):
    """A journal whose newest snapshot stands far from its end, with a file of an earlier life."""
    drive = tallied(5)
    first = written(tmp_path, 1, drive)
    (before,) = read_history(tmp_path).starts
    writer = JournalWriter(tmp_path, 2, drive.controller.options, continued=before)
    writer.event(ev.Tick(), 100.0)
    writer.snapshot(encode(Snapshot(state=drive.state, tally=drive.tally)), 100.0)
    for number in range(300):
        writer.announcement(f"{number} " + "x" * FIRST_READ_BYTES.bit_length() * 300, 101.0)
    assert writer.path.stat().st_size > FIRST_READ_BYTES
    return first, writer


def test_the_snapshot_is_found_however_far_from_the_end_it_stands(tmp_path):
    _, writer = long(tmp_path)
    (found,) = read_newest(tmp_path).starts
    (whole,) = read_history(tmp_path).starts
    assert found.damage is None
    assert found.lines == whole.lines[found.first :]
    assert (found.num_lines, found.sum) == (whole.num_lines, whole.sum)
    assert len(found.lines) == 301
    assert writer.num_lines == whole.num_lines


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"flipped"])
def test_damage_after_the_snapshot_is_told_by_file_and_line_as_all_files_tell_it(tmp_path, bad):
    """control A16: bytes that are no text ended each later start."""
    _, writer = long(tmp_path)
    lines = writer.path.read_bytes().split(b"\n")
    lines[-5] = bad + lines[-5][len(bad) :]
    writer.path.write_bytes(b"\n".join(lines) + b'{"torn \xff')
    (found,) = read_newest(tmp_path).starts
    (whole,) = read_history(tmp_path).starts
    assert found.damage is not None
    assert found.damage == whole.damage
    assert found.lines == whole.lines[found.first :]


def test_without_a_snapshot_that_proves_itself_all_files_are_read(tmp_path):
    _, writer = long(tmp_path)
    writer.path.write_bytes(writer.path.read_bytes().replace(b'"announced"', b'"announcec"'))
    assert read_newest(tmp_path) == read_history(tmp_path)
