import time

import pytest

from remesh.actors.controller.watch import Watch, _domain
from remesh.actors.node.offers import Offers
from remesh.orchestrator.control.words.events import NodeJoined, NodeLost, NodeSilent, WorkerFrozen
from remesh.orchestrator.job.timers import Timers

P = 600.0  # seconds, against which it is nothing that this process may have to wait for a core
TIMERS = Timers(patience_s=P)


def watch_of(post, died_at_s, announce):
    offers = Offers("cpu", pytest.fail)
    return Watch(post=post, died_at_s=died_at_s, timers=TIMERS, announce=announce, offers=offers)


class Listener:
    """A watch over one node that was offered and beats, at a clock that the test moves."""

    def __init__(self):
        self.events = []
        self.told = []
        self.watch = watch_of(self.events.append, {"node": 17.0}.get, self.told.append)
        self.watch._offer(NodeJoined(node="node", slots=2))
        self.watch.beat("node", ())
        self.events.clear()

    def silence(self, seconds):
        """As if the node had given no sign for so long, while this process was awake."""
        self.watch._beats["node"] = time.monotonic() - seconds
        self.look()

    def look(self):
        self.watch._looked_s = time.monotonic()
        self.watch._look_at_beats()


@pytest.fixture
def listener():
    return Listener()


def test_a_silent_node_is_suspected_once_and_lost_once(listener):
    listener.silence(0.8 * P)
    assert listener.events == []
    listener.silence(1.2 * P)
    listener.silence(1.4 * P)
    assert [type(event) for event in listener.events] == [NodeSilent]
    listener.silence(3.2 * P)
    listener.look()
    assert [type(event) for event in listener.events] == [NodeSilent, NodeLost]
    assert listener.events[1].died_at_s == 17.0


def test_a_suspect_that_beats_again_is_none_and_can_become_one_again(listener):
    listener.silence(1.2 * P)
    listener.watch.beat("node", ())
    listener.look()
    listener.silence(1.2 * P)
    assert [type(event) for event in listener.events] == [NodeSilent, NodeSilent]


def test_a_node_that_was_given_up_gets_no_more_leases(listener):
    listener.watch.beat("other", ())
    assert listener.watch.beat("node", ()) == 2
    listener.silence(3.2 * P)
    assert listener.watch.beat("node", (("worker-0", 1.0),)) == 0
    assert listener.watch.beat("other", ()) == 1
    assert [type(event) for event in listener.events] == [NodeSilent, NodeLost]


def test_a_node_that_is_done_without_while_it_is_only_silent_gets_no_more_leases(listener):
    listener.silence(1.2 * P)
    listener.watch.lose("node", "silent while its generation ended")
    assert listener.watch.beat("node", ()) == 0
    listener.silence(3.2 * P)
    assert [type(event) for event in listener.events] == [NodeSilent, NodeLost]


def test_a_pause_of_the_listener_is_no_silence_of_the_nodes(listener):
    listener.watch._beats["node"] -= 60 * P
    listener.watch._looked_s -= 60 * P
    listener.watch._look_at_beats()
    assert listener.events == []
    listener.silence(3.2 * P)
    assert isinstance(listener.events[-1], NodeLost)


def test_the_first_beat_may_take_as_long_as_a_start(listener):
    listener.watch.agent("late")
    listener.watch._beats["late"] -= TIMERS.start_s() - P / 2
    listener.look()
    assert listener.events == []


def test_a_frozen_worker_is_told_once(listener):
    for silent_s in (0.6, 0.7):
        listener.watch.beat("node", (("worker-0", silent_s),))
    assert listener.events == [WorkerFrozen(worker="worker-0", silent_s=0.6)]


def test_a_watch_that_takes_over_offers_nobody_twice_and_waits_for_the_first_beats(listener):
    watch = watch_of(listener.events.append, {}.get, listener.told.append)
    watch.resume(offered=["node", "idle"], gone=["lost"], heard=["node"])
    for node in ("node", "idle", "lost", "new"):
        watch._offer(NodeJoined(node=node, slots=2))
    assert listener.events == [NodeJoined(node="new", slots=2)]
    assert watch.beat("lost", ()) == 0
    listener.events.clear()
    for seconds in (TIMERS.adopt_s(1), TIMERS.adopt_s(1) + TIMERS.node_lost_s(1)):
        watch._beats = {node: beat - seconds for node, beat in watch._beats.items()}
        watch._looked_s = time.monotonic()
        watch._look_at_beats()
        if seconds == TIMERS.adopt_s(1):
            assert listener.events == []
            watch.resume(offered=[], gone=[], heard=["node"])
    assert [type(event) for event in listener.events] == [NodeSilent, NodeLost]


def test_a_node_that_was_let_go_is_not_missed_and_gets_no_more_leases(listener):
    listener.watch.release("node")
    assert listener.watch.beat("node", ()) == 0
    assert "node" not in listener.watch._beats
    listener.look()
    assert listener.events == []
    listener.watch.agent("node")
    assert listener.watch.beat("node", ()) == 1


def test_the_domain_of_a_node_is_its_label():
    assert _domain({}) == ""
    assert _domain({"ray.io/gpu-domain": "nvl-1"}) == "nvl-1"
    assert _domain({"ray.io/gpu-domain": "nvl-1", "remesh/domain": "rack-7"}) == "rack-7"


def test_a_look_that_fails_is_announced_once_and_looked_again(listener):
    """User 12: a watch that dies in silence would see no death any more."""
    looks = 0

    def look():
        nonlocal looks
        looks += 1
        if looks == 3:
            listener.watch.end()
        raise RuntimeError("no answer")

    listener.watch._repeat(look, 0.0)
    assert looks == 3
    assert listener.told == [
        "the controller could not look around, and tries again: RuntimeError: no answer"
    ]
