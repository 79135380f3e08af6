"""An event that the machine cannot handle is set aside: it ends no run, and no later start."""

from itertools import count

import pytest
from control_values import options

from remesh.actors.controller.careful import MOST, CarefulMachine
from remesh.actors.history.journal_files import Journal
from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import replayed
from remesh.orchestrator.accounts.snapshot import Snapshot, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import events as ev

BAD = ev.ScaleRequested(nodes=13)
JOINED = ev.NodeJoined(node="head", slots=1, head=True)
READY = ev.WorkerReady(worker="worker-0", node="head", pid=7)


class FaultyMachine(Controller):
    """Has an error of ours: one event raises when half of it is done."""

    def handle(self, event, now_s):
        commands = super().handle(event, now_s)
        if event == BAD:
            raise KeyError("worker-99")
        return commands


class FaultyJournal(Journal):
    def machine(self, state=None):
        return FaultyMachine(self.options, state)


class Life:
    """One life of a controller that has the error."""

    def __init__(self, folder):
        self.folder = folder
        self.writer = JournalWriter(folder, 1, options())
        self.machine = FaultyMachine(options())
        self.careful = CarefulMachine(self.machine, self.writer, folder)
        self.moments = count()

    def tell(self, *events):
        answers = []
        for event in events:
            now_s = float(next(self.moments))
            line = self.writer.event(event, now_s)
            answers.append(self.careful.handle(event, now_s, line))
        return answers


def test_the_machine_is_as_if_it_had_not_been_told_and_the_run_goes_on(tmp_path):
    life, other = Life(tmp_path), Controller(options())
    known = life.machine.state
    answers = life.tell(JOINED, ev.RunStarted(), BAD, READY)
    for now_s, event in ((0.0, JOINED), (1.0, ev.RunStarted()), (3.0, READY)):
        other.handle(event, now_s)
    assert answers[2] is None
    assert len(answers[3]) > 0
    assert life.machine.state == other.state
    assert life.machine.state is known, "others look at it"
    (said,) = life.writer.announcements
    assert said.startswith(
        "an event that cannot be handled, ScaleRequested, is set aside (KeyError"
    )
    assert "controller.log" in said


def test_it_is_undone_from_the_newest_snapshot_on(tmp_path):
    life = Life(tmp_path)
    life.tell(JOINED, ev.RunStarted())
    there = Snapshot(state=life.machine.state, tally=Tally())
    life.writer.snapshot(encode(there), 1.5)
    life.tell(READY, BAD)
    before = encode(Snapshot(state=life.machine.state, tally=Tally()))
    life.tell(BAD)
    assert encode(Snapshot(state=life.machine.state, tally=Tally())) == before
    assert replayed(read_newest(tmp_path).starts).state == life.machine.state


def test_a_replay_passes_it_over(tmp_path):
    life = Life(tmp_path)
    life.tell(JOINED, ev.RunStarted(), BAD, READY)
    (found,) = read_history(tmp_path).starts
    assert found.replay().state == life.machine.state
    assert journal.replay(found.lines, options()).state == life.machine.state
    assert replayed([found]).state == life.machine.state
    assert replayed([found]).aside == {}


def test_a_controller_that_died_of_it_is_followed_by_one_that_knows(tmp_path):
    """It was in the journal, and the word that it is set aside was not yet."""
    life = Life(tmp_path)
    life.tell(JOINED, ev.RunStarted())
    line = life.writer.event(BAD, 5.0)
    life.writer.event(READY, 6.0)
    (found,) = read_history(tmp_path).starts
    faulty = FaultyJournal(incarnation=1, options=found.options, lines=found.lines)
    done = replayed([faulty])
    assert [worker.pid for worker in done.state.roster.workers.values()] == [7]
    assert done.state.wanted_nodes is None
    assert list(done.aside) == [(1, line)]


def test_where_nothing_can_be_handled_the_controller_ends(tmp_path):
    life = Life(tmp_path)
    life.tell(JOINED, *[BAD] * MOST)
    with pytest.raises(KeyError):
        life.tell(BAD)
