"""What an agent does about a controller that loses words, is away, is old, or gives the node up."""

import os
import signal
import time

import pytest
from node_house import House, house_spec
from waiting import soon

from remesh.actors.agent.words import AskVault, EndNode, EndRank, StartRank
from remesh.actors.node.processes import look
from remesh.actors.node.stamps import Field, Stamps, folder_of
from remesh.orchestrator.control.words.events import (
    VaultTold,
    WorkerFrozen,
    WorkerLost,
    WorkerReady,
)


@pytest.fixture
def house(tmp_path):
    house = House(house_spec(tmp_path))
    yield house
    house.close()


def test_what_nobody_has_heard_is_told_again_and_counted_once(house):
    house.start("worker-0")
    house.loses = 3
    house.tell(EndRank(worker="worker-0"))
    assert house.lost("worker-0")
    assert house.loses == 0
    assert [type(event) for event in house.events] == [WorkerReady, WorkerLost]


def test_one_that_was_begun_before_its_controller_is_warm_and_says_nothing_until_it_is_told(
    tmp_path,
):
    house = House(house_spec(tmp_path), early=True)
    try:
        assert soon(lambda: house.household._forker._is_warm)
        assert house.words == []
        (one,) = house.start("worker-0")
        assert one.seat.incarnation == house.incarnation
        assert {word.incarnation for word in house.words} == {house.incarnation}
    finally:
        house.close()


def test_beats_without_news_call_nobody_and_renew_the_lease(tmp_path):
    house = House(house_spec(tmp_path, patience_s=2.0))
    house.read_letters()
    try:
        (one,) = house.start("worker-0")

        def ten_in_a_row():
            """After a letter whose answer is late it calls for a while."""
            before, leased_ns = house.letters_in_a_row, one.stamps[Field.LEASE_NS]
            soon(lambda: not before <= house.letters_in_a_row < before + 10)
            in_a_row = house.letters_in_a_row >= before + 10
            return in_a_row and one.stamps[Field.LEASE_NS] > leased_ns

        assert soon(lambda: one.stamps)
        assert soon(ten_in_a_row)
        calls = house.calls
        house.end("worker-0")
        assert house.calls > calls
    finally:
        house.close()


class Stopping(House):
    """Its agent stands still between what it says and what is answered to that, once."""

    stops_s = 0.0

    def _hear(self, word):
        answer = super()._hear(word)
        stops_s, self.stops_s = self.stops_s, 0.0
        time.sleep(stops_s)
        return answer


def test_that_it_stood_still_after_it_had_spoken_is_said_with_the_next_word(tmp_path):
    house = Stopping(house_spec(tmp_path, patience_s=0.5))
    try:
        house.start("worker-0")
        house.stops_s = 2.0
        assert soon(lambda: any(word.stood_still_s > 1.0 for word in house.words))
    finally:
        house.close()


def test_where_no_letter_arrives_an_agent_calls_as_often(tmp_path):
    house = House(house_spec(tmp_path, patience_s=0.5))
    house.read_letters(arrive=False)
    try:
        house.start("worker-0")
        calls, words = house.calls, len(house.words)
        assert soon(lambda: house.calls > calls + 8)
        assert len(house.words) - words == house.calls - calls
    finally:
        house.close()


def test_orders_of_a_controller_before_the_newest_are_dropped(house):
    (one,) = house.start("worker-0")
    old = house.incarnation
    house.incarnation += 1
    house.tell(StartRank(worker="worker-1"))
    assert soon(lambda: "worker-1" in house.told(WorkerReady))
    house.tell(EndRank(worker="worker-0"), incarnation=old)
    house.end("worker-1")
    assert look(one.pid)
    assert "worker-0" not in house.told(WorkerLost)
    assert house.words[-1].incarnation == old + 1


def test_a_node_that_was_given_up_ends_all_it_has_and_says_when_it_is_empty(house):
    two = house.start("worker-0", "worker-1")
    vault = house.start_vault()
    os.kill(two[0].pid, signal.SIGSTOP)
    house.clear = True
    assert soon(lambda: house.words[-1].empty)
    assert not any(look(one.pid) for one in (*two, vault))
    house.clear = False
    house.start("worker-2")
    assert not house.words[-1].empty


def test_an_agent_that_is_not_leased_any_more_ends_with_all_it_has(tmp_path):
    """Its own time counts, so the patience is short."""
    house = House(house_spec(tmp_path, patience_s=0.1))
    try:
        (one,) = house.start("worker-0")
        house.leased = False
        house.thread.join()
        assert look(one.pid) is None
    finally:
        house.close()


def test_a_lease_is_passed_on_for_as_long_as_it_is_renewed(house):
    house.start("worker-0")
    stamps = Stamps.open_all(folder_of(house.spec.run, "127.0.0.1-abcdef"), {})["worker-0"]
    assert stamps[Field.INCARNATION] == house.incarnation
    before = stamps[Field.LEASE_NS]
    assert soon(lambda: stamps[Field.LEASE_NS] > before)
    house.leased = False
    told = len(house.words)
    assert soon(lambda: len(house.words) > told + 1)
    before = stamps[Field.LEASE_NS]
    told = len(house.words)
    assert soon(lambda: len(house.words) > told + 1)
    assert stamps[Field.LEASE_NS] == before


def test_a_stopped_rank_is_told_as_frozen(tmp_path):
    house = House(house_spec(tmp_path, patience_s=1.0))
    try:
        (one,) = house.start("worker-0")
        os.kill(one.pid, signal.SIGSTOP)
        assert soon(lambda: "worker-0" in house.told(WorkerFrozen))
        assert house.told(WorkerFrozen)["worker-0"].silent_s > 1.0
    finally:
        house.close()


def test_a_vault_that_is_asked_tells(house):
    house.start_vault()
    house.tell(AskVault(generation=3))
    assert soon(lambda: [e for e in house.events if isinstance(e, VaultTold)])
    assert house.events[-1].slots == ()


def test_the_end_of_the_node_is_the_end_of_its_processes(house):
    (one,) = house.start("worker-0")
    house.tell(EndNode())
    house.thread.join()
    assert look(one.pid) is None
