import errno
import json
from dataclasses import replace

import pytest
from control_values import options, record

from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import MOST_SAID, MOST_WAITING_BYTES, JournalWriter
from remesh.actors.history.newest_journal import read_newest
from remesh.data.durable import Disk
from remesh.orchestrator.accounts.snapshot import Snapshot, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import read
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.commands import Announce, Form
from remesh.orchestrator.control.words.records import CheckpointState, FreshState
from remesh.orchestrator.control.words.run_format import RUN_FORMAT
from remesh.orchestrator.control.words.sealed_lines import KEY, sealed, unsealed
from remesh.orchestrator.user_errors import UserError

OPTIONS = options(min_workers=1)


def told(step):
    return record(step, loss=1.0 / step, digest=f"{step:x}", ended_s=100.0 + step)


def live(writer, options):
    """A machine that runs to its second step, its journal written before each event."""
    machine, now_s = Controller(options), 100.0
    commands = []

    def handle(event):
        nonlocal now_s
        now_s += 0.25
        writer.event(event, now_s)
        commands.extend(machine.handle(event, now_s))
        for command in commands:
            if isinstance(command, Announce):
                writer.announcement(command.text, now_s)

    handle(ev.NodeJoined(node="n", slots=2, head=True))
    handle(ev.RunStarted())
    for name in ("worker-0", "worker-1"):
        handle(ev.WorkerReady(worker=name, node="n", pid=1))
    form = next(command for command in commands if isinstance(command, Form))
    generation = form.generation
    for member in form.members:
        handle(ev.WorkerFormed(worker=member.worker, generation=generation, form_s=0.1))
        handle(
            ev.WorkerRestored(
                worker=member.worker, generation=generation, at_step=form.from_step, restore_s=0.1
            )
        )
    steps = tuple(told(form.from_step + k) for k in (1, 2))
    handle(ev.StepsDone(worker="worker-0", generation=generation, records=steps))
    return machine


def test_a_replayed_journal_is_the_live_machine(tmp_path):
    machine = live(JournalWriter(tmp_path, 1, OPTIONS), OPTIONS)
    (journal,) = read_history(tmp_path).starts
    assert journal.options == OPTIONS
    assert machine.state.step == 2
    assert view_of(journal.replay()) == view_of(machine)
    assert journal.replay().state == machine.state


def test_what_was_announced_is_read_back_in_order_and_held_for_polls(tmp_path):
    writer = JournalWriter(tmp_path, 1, OPTIONS)
    writer.announcement('a "quoted" word, an ü', 1.5)
    writer.event(ev.StopRequested(reason='"is":"Announced"'), 2.0)
    writer.ending("finished: all of it", 2.5)
    (journal,) = read_history(tmp_path).starts
    assert list(journal.announcements()) == [
        {"at_s": 1.5, "text": 'a "quoted" word, an ü'},
        {"at_s": 2.5, "text": "finished: all of it"},
    ]
    assert writer.announcements == ['a "quoted" word, an ü']


@pytest.mark.parametrize(
    "changes",
    [
        {"resume": FreshState()},
        {
            "resume": CheckpointState(step=5, name="step-00000005.gen-2.start-0"),
            "fallbacks": (CheckpointState(step=3, name="step-00000003.gen-1.start-0"),),
            "last_generation": 2,
            "patience_s": 0.25,
        },
    ],
)
def test_options_come_back_as_they_were(tmp_path, changes):
    changed = replace(OPTIONS, **changes)
    JournalWriter(tmp_path, 3, changed)
    (journal,) = read_history(tmp_path).starts
    assert journal.options == changed
    assert journal.lines == ()


def test_a_crash_at_any_byte_leaves_a_readable_journal(tmp_path):
    writer = JournalWriter(tmp_path, 1, OPTIONS)
    writer.event(ev.NodeJoined(node="n", slots=2, head=True), 1.0)
    writer.announcement("a node joined", 1.0)
    written = writer.path.read_bytes()
    first = written.index(b"\n")
    for cut in [*range(0, len(written), 7), first, first + 1, len(written) - 1]:
        writer.path.write_bytes(written[:cut])
        journals = read_history(tmp_path).starts
        assert len(journals) == (cut > first)
        for journal in journals:
            journal.replay()
            assert len(list(journal.announcements())) == 0


def test_a_line_broken_in_the_middle_ends_what_is_proven_and_is_named(tmp_path):
    writer = JournalWriter(tmp_path, 1, OPTIONS)
    for now_s in (1.0, 2.0):
        writer.event(ev.Tick(), now_s)
    writer.path.write_bytes(writer.path.read_bytes()[:-5] + b"\n")
    writer.event(ev.Tick(), 3.0)
    history = read_history(tmp_path)
    (journal,) = history.starts
    assert [at_s for _, at_s in read(journal.lines)] == [1.0]
    assert [(found.file, found.line) for found in history.damage] == [(str(writer.path), 3)]
    assert str(journal.damage).startswith(f"{writer.path}: line 3 is damaged (its checksum")


@pytest.mark.parametrize("version", [None, 0, RUN_FORMAT + 1, "1", True])
def test_a_journal_of_another_version_is_refused_in_a_line_that_names_both(tmp_path, version):
    path = JournalWriter(tmp_path, 1, OPTIONS).path
    opened, *rest = path.read_text().splitlines()
    told = {"format_version": version} if version is not None else {}
    values = {key: value for key, value in json.loads(opened).items() if key != KEY}
    first, _ = sealed(json.dumps({**values, **told}))
    path.write_text("\n".join([first, *rest, ""]))
    if version is None:
        path.write_text('{"at_s":0.0,"event":"RunOpened","options":{"steps":10}}\n')
    with pytest.raises(UserError) as refused:
        read_history(tmp_path)
    found = "none, as those of 0.1" if version is None else repr(version)
    assert f"format_version {found}, this Remesh reads {RUN_FORMAT}; start over" in str(
        refused.value
    )
    assert str(path) in str(refused.value)


def test_a_first_line_of_other_options_is_named(tmp_path):
    path = JournalWriter(tmp_path, 1, OPTIONS).path
    first, _ = unsealed(path.read_text().rstrip())
    path.write_text(sealed(first.replace('"steps":10', '"steps":10,"colour":"red"'))[0] + "\n")
    history = read_history(tmp_path)
    assert history.starts == ()
    assert "line 1 is damaged (Opened.options: Options has no 'colour')" in str(history.damage[0])


def test_each_start_has_a_journal_of_its_own_oldest_first(tmp_path):
    assert read_history(tmp_path).starts == ()
    for incarnation in (2, 10, 1):
        JournalWriter(tmp_path, incarnation, replace(OPTIONS, last_generation=incarnation))
    (tmp_path / "journal" / "notes.txt").write_text("foreign")
    found = [journal.options.last_generation for journal in read_history(tmp_path).starts]
    assert found == [1, 2, 10]


def continued(run_folder, incarnation):
    (before,) = read_history(run_folder).starts
    return JournalWriter(run_folder, incarnation, before.options, continued=before)


def test_a_controller_that_takes_over_continues_the_journal_of_the_one_before(tmp_path):
    first = JournalWriter(tmp_path, 1, OPTIONS)
    machine = live(first, OPTIONS)
    second = continued(tmp_path, 2)
    assert second.announcements == first.announcements != []
    for event, now_s in ((ev.ControllerRestarted(down_s=3.0), 200.0), (ev.Tick(), 201.0)):
        second.event(event, now_s)
        machine.handle(event, now_s)
    (journal,) = read_history(tmp_path).starts
    assert (journal.incarnation, journal.options) == (1, OPTIONS)
    assert journal.replay().state == machine.state
    assert (journal.nodes(), journal.newest_s()) == ({"n"}, 201.0)


def test_what_a_dead_controller_writes_after_it_was_followed_counts_for_nobody(tmp_path):
    dead = JournalWriter(tmp_path, 1, OPTIONS)
    dead.event(ev.NodeJoined(node="n", slots=2), 1.0)
    with dead.path.open("a") as file:
        file.write('{"at_s":1.5,"told":{"is":"NodeJo')
    continued(tmp_path, 2).event(ev.NodeJoined(node="m", slots=2), 2.0)
    dead.event(ev.NodeJoined(node="late", slots=2), 2.5)
    third = continued(tmp_path, 4)  # the one with the third claim died before its first line
    third.event(ev.NodeJoined(node="o", slots=2), 3.0)
    (journal,) = read_history(tmp_path).starts
    assert journal.nodes() == {"n", "m", "o"}
    JournalWriter(tmp_path, 5, OPTIONS)
    assert [found.incarnation for found in read_history(tmp_path).starts] == [1, 5]


def test_a_whole_line_that_it_writes_then_counts_for_nobody_either(tmp_path):
    """control M21: the lines of the one that followed it did not fit any more."""
    dead = JournalWriter(tmp_path, 1, OPTIONS)
    dead.event(ev.NodeJoined(node="n", slots=2), 1.0)
    second = continued(tmp_path, 2)
    dead.event(ev.NodeJoined(node="late", slots=2), 2.5)
    second.event(ev.NodeJoined(node="m", slots=2), 3.0)
    (journal,) = read_history(tmp_path).starts
    assert (journal.nodes(), journal.damage) == ({"n", "m"}, None)


class FullDisk(Disk):
    """Has room for so many bytes."""

    def __init__(self, room):
        self.room = room

    def append(self, file, data):
        if data and not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = super().append(file, data[: self.room])
        self.room -= taken
        return taken


def test_a_full_disk_holds_up_the_commits_and_no_training(tmp_path):
    """control A16: it ended the run."""
    disk = FullDisk(10**6)
    writer = JournalWriter(tmp_path, 1, OPTIONS, disk=disk)
    disk.room = 30
    for now_s in (1.0, 2.0):
        writer.event(ev.Tick(), now_s)
    [said] = writer.announced(0)
    assert "no room for the run's journal" in said
    with pytest.raises(OSError, match="No space left"):
        writer.sync()
    whole = writer.bytes_from(0, 10**6)
    disk.room = 10**6
    writer.event(ev.Tick(), 3.0)
    writer.sync()
    assert writer.path.read_bytes().startswith(whole)
    (journal,) = read_history(tmp_path).starts
    assert [at_s for _, at_s in read(journal.lines)] == [1.0, 2.0, 3.0]
    assert journal.damage is None


def test_what_waits_for_room_is_bounded(tmp_path):
    disk = FullDisk(10**6)
    writer = JournalWriter(tmp_path, 1, OPTIONS, disk=disk)
    disk.room = 0
    text = "x" * (MOST_WAITING_BYTES // 8)
    for _ in range(7):
        writer.announcement(text, 1.0)
    with pytest.raises(OSError, match="No space left"):
        writer.announcement(text, 1.0)


def test_who_takes_over_at_a_snapshot_knows_what_was_announced_and_which_nodes_there_were(tmp_path):
    """Nothing before the snapshot is read: it says so itself."""
    first = JournalWriter(tmp_path, 1, OPTIONS)
    machine = live(first, OPTIONS)
    told = [f"sentence {number}" for number in range(MOST_SAID)]
    for text in told:
        first.announcement(text, 300.0)
    there = Snapshot(state=machine.state, tally=Tally())
    first.snapshot(encode(there), 301.0)
    first.announcement("one more", 302.0)
    (found,) = read_newest(tmp_path).starts
    assert len(found.lines) == 2
    second = JournalWriter(tmp_path, 2, OPTIONS, continued=found)
    everything = len(first.announcements)
    assert second.announced(everything - 1) == ("one more",)
    assert second.announced(0) == (*told, "one more")
    assert found.nodes() == {"n"}
    assert second.num_lines == first.num_lines
    second.event(ev.Tick(), 303.0)
    (whole,) = read_history(tmp_path).starts
    assert whole.damage is None
    assert len(whole.lines) == second.num_lines
