"""The thread that handles events: in the order of the journal, and each before the next is looked
at; what is decided is carried out after the journal knows why.
"""

import threading
from dataclasses import dataclass, field, replace

import pytest
from control_values import options
from test_actors_takeover import spec_of
from test_set_aside import BAD, FaultyMachine

from remesh.actors.controller.careful import CarefulMachine
from remesh.actors.controller.event_loop import EventLoop, LoopParts
from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.takeover import begin
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.links.pulse import Pulse
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev

JOINED = ev.NodeJoined(node="head", slots=1, head=True)
STOP = ev.StopRequested(reason="enough", at_once=True)
PATIENCE_S = 1.0


@dataclass
class Orders:
    """Keeps what was carried out, and does the next thing of `when_idle` if there is no event."""

    done: list = field(default_factory=list)
    when_idle: list = field(default_factory=list)

    def carry_out(self, command):
        self.done.append(command)

    def end_turn(self, event):
        self.done.append(event)

    def settle(self, *, idle):
        if idle and self.when_idle:
            self.when_idle.pop(0)()


class Metrics:
    def __init__(self, view, awaited_s=0.0):
        self.noted = []
        self.view = view
        self.wait_s = awaited_s

    def note(self, event, now_s):
        assert self.view.lock.locked()
        self.noted.append((event, now_s))

    def awaited_s(self):
        return self.wait_s


class View:
    def __init__(self):
        self.lock = threading.Lock()


class Commits:
    def __init__(self, done):
        self.done = done

    def begin(self, _spec, form):
        self.done.append(("begin", form.generation))

    def ask(self, spec, command, loss):
        self.done.append(("ask", command.step, spec.fingerprint, loss))


class Fingerprint:
    told = ("told",)

    def __init__(self, done):
        self.done = done

    def tell(self, amendments):
        self.done.append(("tell", amendments))


class Snapshots:
    num = 0

    def after_an_event(self):
        self.num += 1


class Faults:
    def __init__(self):
        self.heard_of = []

    def heard(self, event):
        self.heard_of.append(event)


class Life:
    """A controller's loop at a clock that stands unless the test moves it."""

    def __init__(self, path, machine=None, awaited_s=0.0):
        folder = RunFolder(path)
        self.folder = folder
        begun = begin(spec_of(folder), options(), folder)
        self.begun = replace(begun, machine=machine or begun.machine)
        self.machine = self.begun.machine
        self.now_s = 1000.0
        self.inbox = Inbox(self.begun.journal, lambda: self.now_s)
        self.orders = Orders()
        self.snapshots = Snapshots()
        view = View()
        self.metrics = Metrics(view, awaited_s)
        excused = (lambda for_s: self.inbox.put(ev.StoodStill(for_s=for_s)),)
        self.pulse = Pulse(PATIENCE_S, excused, clock=lambda: self.now_s)
        parts = LoopParts(
            inbox=self.inbox,
            careful=CarefulMachine(self.machine, self.begun.journal, folder.path),
            view=view,
            metrics=self.metrics,
            orders=self.orders,
            commits=Commits(self.orders.done),
            fingerprint=Fingerprint(self.orders.done),
            snapshots=self.snapshots,
            pulse=self.pulse,
            faults=Faults(),
            now_s=lambda: self.now_s,
        )
        self.loop = EventLoop(self.begun, parts)

    def tell(self, *events):
        for event in events:
            self.inbox.put(event)

    def live(self, *events):
        """Handle these, do all that is to be done when idle, and end."""
        self.tell(*events)
        self.orders.when_idle.append(lambda: self.tell(STOP))
        self.loop.run()
        return [event for event, _ in self.metrics.noted]

    def sleep_to_the_deadline(self, step_s):
        """The clock goes on, in steps of which each is looked at, beyond what is due."""
        until_s = self.machine.next_deadline_s()
        while self.now_s <= until_s:
            self.now_s += step_s
            if step_s <= PATIENCE_S:
                self.pulse.look()

    @property
    def told(self):
        (start,) = read_newest(self.folder.path).starts
        return [entry.told for entry in journal.entries(start.lines)]


def test_events_are_handled_in_their_order_and_commands_follow_each(tmp_path):
    life = Life(tmp_path)
    told = [JOINED, ev.RunStarted(), ev.VaultLost(node="head"), STOP]
    assert life.live(*told[:-1]) == told
    done = life.orders.done
    assert [one for one in done if one in told] == told
    start = next(one for one in done if isinstance(one, cmd.StartWorker))
    assert done.index(JOINED) < done.index(start) < done.index(ev.RunStarted())
    assert life.snapshots.num == len(life.metrics.noted)


def test_what_is_due_is_told_once_its_moment_has_come(tmp_path):
    life = Life(tmp_path)
    life.orders.when_idle.append(lambda: life.sleep_to_the_deadline(PATIENCE_S / 2))
    assert life.live(JOINED, ev.RunStarted()) == [JOINED, ev.RunStarted(), ev.Tick(), STOP]
    assert ev.Tick() in life.told


def test_a_standstill_is_told_before_what_became_due_meanwhile(tmp_path):
    """control A5: whoever stood still itself has not waited, and holds nothing against anybody."""
    life = Life(tmp_path)
    life.orders.when_idle.append(lambda: life.sleep_to_the_deadline(10_000.0))
    seen = life.live(JOINED, ev.RunStarted())
    assert [type(event) for event in seen] == [
        ev.NodeJoined,
        ev.RunStarted,
        ev.StoodStill,
        ev.StopRequested,
    ]
    assert seen[2].for_s >= 10_000.0


def test_of_an_event_that_is_set_aside_nothing_follows(tmp_path):
    life = Life(tmp_path, machine=FaultyMachine(options()))
    assert life.live(JOINED, ev.RunStarted(), BAD) == [JOINED, ev.RunStarted(), STOP]
    assert BAD not in [one[0] for one in life.orders.done if isinstance(one, tuple)]
    assert any(isinstance(told, journal.SetAside) for told in life.told)


def test_a_mesh_is_formed_once_its_values_are_told_and_its_checkpoints_can_be(tmp_path):
    life = Life(tmp_path)
    joined = ev.NodeJoined(node="head", slots=4, head=True)

    def ready():
        workers = life.machine.state.roster.workers.values()
        events = [ev.WorkerReady(worker=one.name, node="head", pid=1) for one in workers]
        life.tell(*events)

    life.orders.when_idle.append(ready)
    life.live(joined, ev.RunStarted())
    names = [one[0] if isinstance(one, tuple) else type(one) for one in life.orders.done]
    steps = [name for name in names if name in ("tell", "begin", cmd.Form)]
    assert steps == ["tell", "begin", cmd.Form]


@pytest.mark.parametrize(("awaited_s", "num_waits"), [(0.0, 0), (7.0, 1)])
def test_the_end_is_the_last_word_of_the_journal_and_the_loop_is_over(
    tmp_path, awaited_s, num_waits
):
    life = Life(tmp_path, awaited_s=awaited_s)
    life.live(JOINED, ev.RunStarted())
    assert life.loop.has_ended
    said = [told.text for told in life.told if isinstance(told, journal.Announced)]
    assert "enough" in said[-1]
    assert sum("Prometheus is given 7 s" in text for text in said) == num_waits
    assert life.told[-1] == journal.Announced(text=said[-1])


def test_who_asked_for_the_run_ends_it_between_two_events(tmp_path):
    life = Life(tmp_path)
    life.tell(JOINED)
    life.orders.end_turn = lambda *_, **__: life.loop.end()
    life.tell(ev.RunStarted())
    life.loop.run()
    assert [event for event, _ in life.metrics.noted] == [JOINED]
