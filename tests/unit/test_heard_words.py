"""What agents say: each event once, and none is lost, whatever comes twice or late."""

from control_drive import running
from control_values import records

from remesh.actors.agent.words import NodeWord
from remesh.actors.controller.driver_lease import DriverLease, wait_until_gone
from remesh.actors.links.heard_words import HeardWords, without_known
from remesh.actors.links.pulse import Pulse
from remesh.orchestrator.control.words.events import VaultLost, WorkerParked


def events(*numbers):
    return tuple(VaultLost(node=str(number)) for number in numbers)


def word(first, *numbers, agent=5, node="a"):
    return NodeWord(node=node, agent=agent, first=first, events=events(*numbers), incarnation=1)


class Journal:
    def __init__(self):
        self.lines = []
        self.words = HeardWords(self.lines.extend)

    def numbers(self):
        return [int(event.node) for event in self.lines]


def test_a_word_that_comes_twice_or_overlaps_is_taken_once():
    journal = Journal()
    assert journal.words.take(word(1, 1, 2)) == 2
    assert journal.words.take(word(1, 1, 2)) == 2
    assert journal.words.take(word(2, 2, 3)) == 3
    assert journal.words.take(word(4)) == 3
    assert journal.words.take(word(1, 1)) == 3
    assert journal.numbers() == [1, 2, 3]


def test_each_node_and_each_agent_counts_for_itself():
    journal = Journal()
    journal.words.take(word(1, 1))
    journal.words.take(word(1, 2, node="b"))
    journal.words.take(word(1, 3, agent=6))
    assert journal.words.is_of_older(word(2, 4))
    assert not journal.words.is_of_older(word(2, 4, agent=6))
    journal.words.take(word(2, 4))
    assert journal.numbers() == [1, 2, 3]


def test_a_controller_that_takes_over_hears_from_where_the_one_before_had_heard():
    journal = Journal()
    assert journal.words.take(word(8, 8, 9)) == 9
    assert journal.numbers() == [8, 9]


def parked(*steps, generation=1):
    return WorkerParked(
        worker="worker-0",
        generation=generation,
        at_step=steps[-1],
        drained=False,
        held_in=1,
        records=records(steps[0], steps[-1], 1.0),
    )


def test_steps_that_the_machine_has_heard_of_are_not_written_down_again():
    """control A7: 9 records of each of 4,096 ranks were 6 MB of journal a recovery."""
    state = running(10).state
    known = state.heard_step(1)
    some = without_known(parked(known - 1, known + 2), state)
    assert [record.step for record in some.records] == [known + 1, known + 2]
    assert without_known(parked(known - 1, known), state).records == ()
    other = parked(known - 1, known, generation=99)
    assert without_known(other, state) is other
    assert without_known(events(1)[0], state) == events(1)[0]


class Hourglass:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_driver_that_could_not_ask_has_its_whole_lease_again():
    """control A5: a controller that stood still for 22 s said that its driver was gone."""
    clock = Hourglass()
    lease = DriverLease(20.0, 20.0, clock)
    lease.renew()
    clock.now_s = 22.0
    assert lease.has_lapsed(over=False)
    lease.excuse(22.0)
    assert not lease.has_lapsed(over=False)
    clock.now_s = 41.0
    assert not lease.has_lapsed(over=False)
    clock.now_s = 42.0
    assert lease.has_lapsed(over=False)


def test_a_long_lease_holds_once_the_driver_has_asked_and_until_the_run_is_over():
    clock = Hourglass()
    lease = DriverLease(20.0, 1800.0, clock)
    clock.now_s = 20.0
    assert lease.has_lapsed(over=False)
    lease.renew()
    clock.now_s = 1000.0
    assert not lease.has_lapsed(over=False)
    assert lease.has_lapsed(over=True)
    another = DriverLease(20.0, 1800.0, clock)
    another.lengthen()
    clock.now_s = 1100.0
    assert not another.has_lapsed(over=False)


def test_a_driver_is_gone_after_its_lease_though_nobody_else_looks_at_the_pulse():
    """Of a run that is over: each wait counted as a standstill, and the lease never lapsed."""
    clock, stood_still = Hourglass(), []
    lease = DriverLease(20.0, 1800.0, clock)
    pulse = Pulse(0.5, (lease.excuse, stood_still.append), clock)

    def wait(for_s):
        assert clock.now_s < 30.0, "it waits for ever"
        clock.now_s += for_s + 0.001

    wait_until_gone(lease, pulse, lambda: True, wait)
    assert clock.now_s < 20.5
    assert stood_still == []
