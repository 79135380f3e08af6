"""What the controller sees of nodes: silence by what each was told, and nodes that come back."""

import pytest

from remesh.actors.agent.words import NodeWord
from remesh.actors.links.pulse import Pulse
from remesh.actors.links.watch import Hearers, RayNodes, Watch, domain_of
from remesh.actors.node.offers import Offers, Room
from remesh.orchestrator.control.words.events import (
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeRefused,
    NodeSilent,
)
from remesh.orchestrator.job.timers import Timers

TIMERS = Timers(patience_s=0.5)
PATIENCE_S = TIMERS.patience_s


def entry(number, *, alive=True):
    """A node as Ray lists it, and its name as the run says it."""
    host, node_id = f"10.0.{number // 256}.{number % 256}", f"{number:06d}abc"
    listed = {
        "NodeID": node_id,
        "NodeManagerAddress": host,
        "Alive": alive,
        "Resources": {"CPU": 4.0},
    }
    return f"{host}-{node_id[:6]}", listed


class Sky:
    """A watch over a cluster that the test makes up, at a clock that it moves."""

    def __init__(self, num_nodes=1):
        self.now_s = 100.0
        self.events = []
        self.told = []
        self.listed = dict(entry(number) for number in range(num_nodes))
        self.draining = {}
        self.awaited = set()
        self.watch = self.another()
        self.watch.look_at_nodes()
        self.node = next(iter(self.listed))

    def another(self):
        hearers = Hearers(
            post=self.events.append,
            announce=self.told.append,
            died_at_s={"known": 17.0}.get,
            holds_up=lambda node: node in self.awaited,
        )
        nodes = RayNodes(nodes=lambda: list(self.listed.values()), draining=lambda: self.draining)
        offers = Offers("cpu", pytest.fail)
        return Watch(TIMERS, offers, hearers, cluster=nodes, clock=lambda: self.now_s)

    def use(self):
        """An agent on every node, which has beaten."""
        for node in self.listed:
            self.watch.begins(node)
        for node in self.listed:
            self.beat(node)
        self.events.clear()

    def beat(self, node=None, **said):
        word = NodeWord(node=node or self.node, agent=1, first=1, events=(), incarnation=1, **said)
        return self.watch.beat(word)

    def pass_by(self, seconds, every_s=PATIENCE_S / 5):
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.watch.look_at_beats()

    def seen(self):
        found = [type(event) for event in self.events]
        self.events.clear()
        return found

    def set_alive(self, *, alive):
        self.listed[self.node]["Alive"] = alive


@pytest.fixture
def sky():
    sky = Sky()
    sky.use()
    return sky


def test_a_silent_node_is_suspected_once_and_lost_once(sky):
    sky.pass_by(0.8 * PATIENCE_S)
    assert sky.seen() == []
    sky.pass_by(6 * PATIENCE_S)
    assert sky.seen() == [NodeSilent, NodeLost]
    sky.pass_by(9 * PATIENCE_S)
    assert sky.seen() == []


def test_a_suspect_that_beats_again_is_none_and_can_become_one_again(sky):
    for _ in range(2):
        sky.pass_by(1.4 * PATIENCE_S)
        assert sky.seen() == [NodeSilent]
        assert sky.beat().leased


@pytest.mark.parametrize("num_nodes", [1, 300, 2048])
def test_nodes_that_beat_as_they_are_told_are_never_late(num_nodes):
    """control A1: more than 500 nodes were evicted as soon as they beat as they were told."""
    sky = Sky(num_nodes)
    sky.use()
    interval_s = dict.fromkeys(sky.listed, 0.0)
    due_s = {}
    for index, node in enumerate(sky.listed):
        interval_s[node] = TIMERS.beat_s(sky.beat(node).num_nodes)
        due_s[node] = sky.now_s + interval_s[node] * (index + 1) / num_nodes
    until_s, step_s = sky.now_s + 4 * TIMERS.beat_s(num_nodes), TIMERS.beat_s(num_nodes) / 8
    while sky.now_s < until_s:
        sky.now_s += step_s
        for node in [node for node, at_s in due_s.items() if at_s <= sky.now_s]:
            due_s[node] += TIMERS.beat_s(sky.beat(node).num_nodes)
        sky.watch.look_at_beats()
    assert sky.seen() == []


def test_a_node_that_was_told_to_beat_slowly_is_not_late_when_few_are_left():
    sky = Sky(2048)
    sky.use()
    told = sky.beat().num_nodes
    for node in list(sky.listed)[1:]:
        sky.watch.release(node)
    sky.pass_by(TIMERS.beat_s(told))
    assert sky.seen() == []
    sky.beat()
    sky.pass_by(2 * PATIENCE_S)
    assert sky.seen() == [NodeSilent]


def test_a_pause_of_the_one_who_listens_is_no_silence_of_the_nodes(sky):
    """control A5."""
    told = []
    pulse = Pulse(PATIENCE_S, (sky.watch.excuse, told.append), clock=lambda: sky.now_s)
    sky.now_s += 60 * PATIENCE_S
    assert pulse.look() == 60 * PATIENCE_S
    sky.watch.look_at_beats()
    assert sky.seen() == []
    assert told == [60 * PATIENCE_S]
    assert pulse.look() == 0.0
    sky.now_s += 0.9 * PATIENCE_S
    assert pulse.look() == 0.0
    sky.pass_by(6 * PATIENCE_S)
    assert sky.seen() == [NodeSilent, NodeLost]


def test_a_node_whose_host_stood_still_has_more_time_for_a_while(sky):
    sky.beat(stood_still_s=4 * PATIENCE_S)
    sky.pass_by(4.5 * PATIENCE_S)
    assert sky.seen() == []
    sky.pass_by(PATIENCE_S)
    assert sky.seen() == [NodeSilent]
    sky.now_s += 120 * PATIENCE_S
    sky.beat()
    sky.pass_by(1.5 * PATIENCE_S)
    assert sky.seen() == [NodeSilent]


def test_a_node_that_was_given_up_is_told_to_clear_itself_and_is_offered_once_it_has(sky):
    """control A6: it was never used again."""
    sky.pass_by(6 * PATIENCE_S)
    sky.watch.look_at_nodes()
    assert sky.seen() == [NodeSilent, NodeLost]
    told = sky.beat()
    assert (told.leased, told.clear) == (False, True)
    assert sky.watch.room(sky.node) is None
    sky.watch.over(sky.node, "ended")
    assert sky.seen() == []
    sky.watch.look_at_nodes()
    sky.watch.look_at_nodes()
    assert sky.seen() == [NodeJoined]
    sky.watch.begins(sky.node)
    assert sky.beat().leased


def test_a_node_whose_agent_dies_is_lost_at_once_and_offered_again(sky):
    sky.watch.over(sky.node, "died")
    assert sky.events == [NodeLost(node=sky.node, cause="its agent died", died_at_s=None)]
    sky.watch.look_at_nodes()
    assert sky.seen() == [NodeLost, NodeJoined]


def test_a_node_that_ray_has_lost_is_gone_for_good(sky):
    sky.set_alive(alive=False)
    sky.watch.look_at_nodes()
    sky.watch.over(sky.node, "died")
    sky.set_alive(alive=True)
    sky.watch.look_at_nodes()
    assert sky.seen() == [NodeLost]
    assert sky.beat().clear


def test_one_that_is_done_without_while_it_is_only_silent_is_cleared(sky):
    sky.watch.lose(sky.node, "silent while its generation ended")
    sky.watch.lose(sky.node, "twice")
    assert sky.beat().clear
    sky.pass_by(6 * PATIENCE_S)
    assert sky.seen() == [NodeLost]


def test_the_first_beat_may_take_as_long_as_a_start_and_who_does_not_come_is_known():
    sky = Sky()
    sky.watch.begins(sky.node)
    sky.events.clear()
    assert sky.watch.late_starts(0.0) == {}
    sky.pass_by(TIMERS.start_s())
    assert sky.seen() == []
    assert sky.watch.late_starts(TIMERS.form_s) == {sky.node: Room(node_id="000000abc", slots=4)}
    assert sky.watch.never_came(sky.node)
    sky.beat()
    assert sky.watch.late_starts(0.0) == {}
    assert not sky.watch.never_came(sky.node)


def test_a_node_that_was_let_go_is_not_missed_and_gets_no_more_leases(sky):
    sky.watch.release(sky.node)
    told = sky.beat()
    assert (told.leased, told.clear) == (False, False)
    sky.watch.over(sky.node, "ended")
    sky.pass_by(6 * PATIENCE_S)
    assert sky.seen() == []
    sky.watch.begins(sky.node)
    assert sky.beat().leased


def test_the_end_of_one_that_leaves_is_not_the_end_of_the_one_that_follows(sky):
    sky.watch.release(sky.node)
    sky.watch.begins(sky.node)
    sky.watch.over(sky.node, "ended")
    assert sky.beat().leased
    assert sky.seen() == []


def test_a_watch_that_takes_over_offers_nobody_twice_and_waits_for_the_first_beats():
    sky = Sky(4)
    used, idle, lost, new = sky.listed
    sky.events.clear()
    watch = sky.watch = sky.another()
    watch.resume(offered=[used, idle], gone=[lost], used=[used], there=[used, lost])
    watch.look_at_nodes()
    assert [event.node for event in sky.events] == [new]
    sky.events.clear()
    assert sky.beat(lost).clear
    sky.pass_by(TIMERS.adopt_s(1))
    assert sky.seen() == []
    sky.pass_by(6 * PATIENCE_S)
    assert sky.seen() == [NodeSilent, NodeLost]
    watch.over(lost, "ended")
    watch.look_at_nodes()
    assert [event.node for event in sky.events] == [lost]


def test_a_watch_that_takes_over_misses_the_agents_that_ended_meanwhile():
    sky = Sky()
    sky.events.clear()
    sky.watch = sky.another()
    sky.watch.resume(offered=[sky.node], gone=[], used=[sky.node], there=[])
    assert sky.seen() == [NodeLost]
    sky.watch.look_at_nodes()
    assert sky.seen() == [NodeJoined]


def test_a_drain_is_told_once():
    sky = Sky()
    sky.events.clear()
    sky.draining = {"000000abc": 50.0}
    sky.watch.look_at_nodes()
    sky.watch.look_at_nodes()
    assert sky.events == [NodeDraining(node=sky.node, cause="Ray drains it", deadline_s=50.0)]


def test_the_moment_of_a_death_on_order_is_told():
    sky = Sky()
    sky.watch.resume(offered=["known"], gone=[], used=["known"], there=[])
    assert sky.events[-1].died_at_s == 17.0


def test_the_domain_of_a_node_is_its_label():
    assert domain_of({}) == ""
    assert domain_of({"ray.io/gpu-domain": "nvl-1"}) == "nvl-1"
    assert domain_of({"ray.io/gpu-domain": "nvl-1", "remesh/domain": "rack-7"}) == "rack-7"


def test_a_look_that_fails_is_announced_once_and_looked_again(sky):
    """User 12, control A14: a watch that dies in silence would see no death any more."""
    looks = 0

    def look():
        nonlocal looks
        looks += 1
        if looks == 3:
            sky.watch.end()
        raise RuntimeError("no answer")

    sky.watch.repeat(look, 0.0)
    assert looks == 3
    assert sky.told == [
        "the controller could not look around, and tries again: RuntimeError: no answer"
    ]


def test_agents_that_end_with_their_run_are_no_lost_nodes(sky):
    """The journal of a run that was over told of each node as lost."""
    sky.watch.end()
    sky.watch.over(sky.node, "died")
    assert sky.seen() == []


def test_a_door_that_refuses_is_told_of_while_the_node_is_used(sky):
    sky.awaited = {sky.node, "nobody"}
    assert sky.watch.refused(sky.node, 90.0)
    assert sky.events == [NodeRefused(node=sky.node, broken_s=90.0)]
    sky.events.clear()
    assert not sky.watch.refused("nobody", 90.0)
    sky.watch.release(sky.node)
    assert not sky.watch.refused(sky.node, 90.0)
    assert sky.seen() == []


def test_a_door_that_refuses_is_told_of_only_once_a_mesh_waits_for_its_node(sky):
    """The journal had a dozen such lines for each dead node."""
    for _ in range(5):
        assert sky.watch.refused(sky.node, 90.0)
    assert sky.events == []
    sky.awaited = {sky.node}
    assert sky.watch.refused(sky.node, 90.0)
    assert sky.events == [NodeRefused(node=sky.node, broken_s=90.0)]


def test_a_node_that_was_given_up_is_not_told_of_again_by_its_door(sky):
    sky.watch.lose(sky.node, "no sign of life")
    assert not sky.watch.refused(sky.node, 90.0)
    assert sky.seen() == [NodeLost]
