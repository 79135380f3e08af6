"""Whose word counts for a controller, and what an agent is answered."""

import threading

import pytest
from control_values import options
from waiting import soon

from remesh.actors.agent.words import NodeWord
from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.listening import Listening
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.links.watch import Word
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import events as ev

OURS = 7
LEASED = Word(num_nodes=3, leased=True)
CLEAR = Word(num_nodes=3, leased=False, clear=True)
NEWS = (ev.VaultLost(node="head"), ev.VaultUp(node="head", address="10.0.0.1:1"))


class Watch:
    """Answers what it is told to, and keeps who was given up."""

    def __init__(self):
        self.says = LEASED
        self.lost = []
        self.beats = 0

    def beat(self, word):
        assert isinstance(word, NodeWord)
        self.beats += 1
        return self.says

    def lose(self, node, cause):
        self.lost.append((node, cause))


class Links:
    def __init__(self):
        self.released = []
        self.heard = []

    def hear(self, word):
        self.heard.append(word.heard)

    def release(self, node):
        self.released.append(node)


class Ear:
    """A controller of incarnation 7 that listens; its run has the node `head`."""

    def __init__(self, folder, *, begun=True):
        machine = Controller(options())
        machine.handle(ev.NodeJoined(node="head", slots=1, head=True), 1.0)
        self.inbox = Inbox(JournalWriter(folder, 1, options()), lambda: 2.0)
        self.watch, self.links = Watch(), Links()
        self.newer = []
        self.listening = Listening(
            OURS, machine, self.inbox, self.watch, self.links, self.newer.append
        )
        if begun:
            self.listening.begin()

    def hear(self, *events, node="head", incarnation=OURS, **more):
        word = {"agent": 2, "first": 1, **more}
        return self.listening.hear(
            NodeWord(node=node, events=events, incarnation=incarnation, **word)
        )

    @property
    def taken(self):
        found = []
        while told := self.inbox.get(0.0):
            found.append(told[0])
        return found


@pytest.fixture
def ear(tmp_path):
    return Ear(tmp_path)


def test_what_is_said_is_taken_once_and_answered_with_its_newest_number(ear):
    answer = ear.hear(*NEWS, heard=4)
    assert (answer.incarnation, answer.heard, answer.num_nodes) == (OURS, 2, 3)
    assert (answer.leased, answer.clear) == (True, False)
    assert ear.hear(*NEWS).heard == 2
    assert ear.taken == list(NEWS)
    assert ear.links.heard == [4, 0]


def test_of_a_node_that_was_given_up_only_the_beat_is_heard(ear):
    ear.watch.says = CLEAR
    answer = ear.hear(*NEWS)
    assert (answer.leased, answer.clear, answer.heard) == (False, True, 2)
    assert ear.taken == []
    assert ear.links.released == []


def test_one_that_has_cleared_itself_is_let_go(ear):
    ear.hear(empty=True)
    assert ear.links.released == []
    ear.watch.says = CLEAR
    ear.hear(empty=True)
    assert ear.links.released == ["head"]


def test_a_node_that_the_run_does_without_is_given_up_and_told_to_clear_itself(ear):
    """It was lost for the machine while the watch still counted its beats."""
    answer = ear.hear(*NEWS, node="b")
    assert ear.watch.lost == [("b", "the run does without it")]
    assert (answer.leased, answer.clear) == (False, True)
    assert ear.taken == []


def test_an_agent_before_the_one_that_is_there_counts_for_nothing(ear):
    ear.hear(NEWS[0], agent=2)
    answer = ear.hear(*NEWS, agent=1)
    assert (answer.leased, answer.clear) == (False, True)
    assert ear.watch.beats == 1
    assert ear.taken == [NEWS[0]]
    assert len(ear.links.heard) == 1


def test_a_controller_that_was_frozen_ends_itself_at_the_first_word_of_a_newer_one(ear):
    ear.hear(incarnation=OURS - 1)
    ear.hear(incarnation=OURS)
    assert ear.newer == []
    ear.hear(incarnation=OURS + 1)
    assert ear.newer == [OURS + 1]


def test_nobody_is_answered_before_it_is_known_who_is_there(tmp_path):
    """A controller that takes over: the words of those that it has not adopted yet wait."""
    ear, answers = Ear(tmp_path, begun=False), []
    asks = threading.Thread(target=lambda: answers.append(ear.hear(*NEWS)))
    asks.start()
    asks.join(0.05)
    assert (answers, ear.watch.beats) == ([], 0)
    ear.listening.begin()
    assert soon(lambda: answers)
    assert ear.taken == list(NEWS)
    asks.join()


def test_what_the_journal_does_not_hold_is_not_answered(tmp_path):
    class Full:
        def events(self, _events, _now_s):
            raise OSError(28, "No space left on device")

    ear = Ear(tmp_path)
    ear.listening = Listening(
        OURS,
        Controller(options()),
        Inbox(Full(), lambda: 2.0),
        ear.watch,
        ear.links,
        ear.newer.append,
    )
    ear.listening.begin()
    ear.watch.says = Word(num_nodes=3, leased=False)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            ear.hear(*NEWS)
