"""How a controller begins, in the first of its lives and in those that follow."""

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from control_values import options
from waiting import PATIENCE_S, soon

from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.takeover import begin, open_server
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.node.lives import Life
from remesh.actors.orders import RunSpec
from remesh.actors.run.contact import Contact, ask
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.job.amendments import Amendment
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import RemeshError

OPTIONS = options()
TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def spec_of(folder, run="abcd"):
    return RunSpec(
        run=run,
        job=load_job(TINY),
        folder=str(folder.path),
        data_digest="",
        fingerprint={},
        start=1,
        incarnation=folder.claim(run),
        max_members=2,
        faults=(),
        driver_lease_s=20.0,
    )


def handled(begun, *events):
    """As the controller's thread does it; afterwards the controller is dead."""
    inbox = Inbox(begun.journal, lambda: begun.now_s)
    for event in events:
        inbox.put(event)
        begun.machine.handle(*inbox.get(0.0))


def test_the_first_life_starts_the_run(folder):
    begun = begin(spec_of(folder), OPTIONS, folder)
    assert begun.events == (ev.RunStarted(),)
    assert (begun.spec.incarnation, begun.gone) == (1, frozenset())


def test_starts_are_counted_and_lives_of_one_start_are_not(folder):
    """user 15"""
    spec = spec_of(folder)
    lives = [begin(spec, OPTIONS, folder), begin(spec, OPTIONS, folder)]
    assert [life.machine.options.start for life in lives] == [1, 1]
    assert begin(spec_of(folder, "efgh"), OPTIONS, folder).machine.options.start == 2


def test_a_life_that_dies_between_a_change_and_its_start_loses_neither(folder):
    """user 4."""
    lower = Amendment(step=1, key="train.lr", old=3e-3, new=1e-3)
    spec = replace(spec_of(folder), changes=(lower,))
    first = begin(spec, OPTIONS, folder)
    handled(first, first.events[0])
    second = begin(spec, OPTIONS, folder)
    assert second.events == first.events == (ev.Amended(changes=(lower,)), ev.RunStarted())
    handled(second, *second.events)
    third = begin(spec, OPTIONS, folder)
    assert third.machine.amendments == (lower,)
    assert isinstance(third.events[0], ev.ControllerRestarted)


def test_what_the_start_has_to_say_is_announced_once(folder):
    spec = replace(spec_of(folder), notices=("the bits change",))
    assert begin(spec, OPTIONS, folder).journal.announcements == ["the bits change"]
    assert begin(spec, OPTIONS, folder).journal.announcements == ["the bits change"]


def test_the_next_life_stands_where_the_one_before_died(folder):
    spec = spec_of(folder)
    first = begin(spec, OPTIONS, folder)
    nodes = [ev.NodeJoined(node=name, slots=1) for name in ("n", "m")]
    handled(first, *nodes, ev.RunStarted(), ev.NodeLost(node="m", cause="power"))
    second = begin(spec, OPTIONS, folder)
    assert second.machine.state == first.machine.state
    assert second.spec.incarnation == 2
    (restarted,) = second.events
    assert isinstance(restarted, ev.ControllerRestarted)
    assert second.gone == {"m"}
    assert second.tally.starts == 1
    handled(second, restarted, ev.StopRequested(reason="enough"))
    third = begin(spec, OPTIONS, folder)
    assert (third.machine.state, third.spec.incarnation) == (second.machine.state, 3)


def test_what_was_decided_and_not_announced_any_more_is_announced_then(folder):
    spec = spec_of(folder)
    first = begin(spec, OPTIONS, folder)
    joined = [ev.NodeJoined(node=name, slots=1) for name in "nm"]
    handled(first, ev.RunStarted(), *joined)
    first.journal.announcement("metrics are somewhere", 1.0)
    first.journal.announcement("node n joined with room for 1 worker", 1.0)
    said = ["metrics are somewhere", *(f"node {n} joined with room for 1 worker" for n in "nm")]
    assert begin(spec, OPTIONS, folder).journal.announcements == said
    handled(begin(spec, OPTIONS, folder), *[ev.StopRequested(reason="enough")] * 2)
    last = begin(spec, OPTIONS, folder)
    assert view_of(last.machine).ended
    assert last.journal.announcements == [*said, "stopped: enough; nothing is saved"]


def test_one_that_died_before_it_started_the_run_leaves_that_to_the_next(folder):
    spec = spec_of(folder)
    handled(begin(spec, OPTIONS, folder), ev.NodeJoined(node="n", slots=1))
    begun = begin(spec, OPTIONS, folder)
    assert begun.events == (ev.RunStarted(),)
    assert list(begun.machine.state.roster.nodes) == ["n"]


def test_a_clock_that_was_set_back_does_not_reach_the_machine(folder):
    spec = spec_of(folder)
    first = begin(spec, OPTIONS, folder)
    first.journal.event(ev.RunStarted(), first.now_s + 1000.0)
    begun = begin(spec, OPTIONS, folder)
    assert begun.now_s == first.now_s + 1000.0
    assert begun.events == (ev.ControllerRestarted(down_s=0.0),)


def test_a_run_that_somebody_else_has_started_is_not_taken_over(folder):
    spec = spec_of(folder)
    begin(spec, OPTIONS, folder)
    other = spec_of(folder, "other")
    with pytest.raises(RemeshError, match="another start of this run has taken over"):
        begin(spec, OPTIONS, folder)
    assert begin(other, OPTIONS, folder).spec.incarnation == 2


def test_its_address_and_token_stay():
    here = {"id": "abcd"}
    answers = {"/status": lambda: here}
    first, token = open_server(answers, {}, None)
    first.close()
    contact = Contact(
        run="abcd", host=first.host, port=first.port, token=token, address="", pid=1, started_s=0.0
    )
    with closing(open_server(answers, {}, contact)[0]) as second:
        assert ask(contact, "/status") == here
        third, same_token = open_server(answers, {}, contact)
        with closing(third):
            assert third.port != second.port
            assert ask(replace(contact, port=third.port), "/status") == here
    assert same_token == token


def test_it_answers_at_the_address_of_its_node_where_it_can():
    """user 3: at that of loopback nobody on another host reaches it."""
    for node, host in (("127.0.0.9", "127.0.0.9"), ("203.0.113.7", "127.0.0.1")):
        with closing(open_server({}, {}, None, node)[0]) as server:
            assert server.host == host


def test_an_event_is_in_the_journal_before_its_sender_knows_that_it_arrived(folder):
    begun = begin(spec_of(folder), OPTIONS, folder)
    inbox = Inbox(begun.journal, lambda: 7.0)
    inbox.put(ev.RunStarted())
    assert begun.journal.path.read_text().count("RunStarted") == 1
    assert inbox.get(0.0) == (ev.RunStarted(), 7.0)
    assert inbox.get(0.01) is None


class FullDisk:
    def events(self, events, now_s):  # noqa: ARG002 - as a journal's
        raise OSError(28, "No space left on device")


def test_a_journal_that_cannot_be_written_ends_who_reads_and_not_who_tells():
    inbox = Inbox(FullDisk(), lambda: 7.0)
    inbox.put(ev.RunStarted())
    with pytest.raises(OSError, match="No space left"):
        inbox.get(0.0)


def test_the_order_of_the_inbox_is_that_of_the_journal(folder):
    begun = begin(spec_of(folder), OPTIONS, folder)
    inbox = Inbox(begun.journal, lambda: 7.0)

    def tell(sender):
        for count in range(50):
            inbox.put(ev.NodeLost(node=f"{sender}-{count}", cause=""))

    senders = [threading.Thread(target=tell, args=(number,)) for number in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    handled_order = [inbox.get(0.0)[0].node for _ in range(200)]
    lines = read_newest(folder.path).starts[-1].lines
    assert [event.node for event, _ in journal.read(lines)] == handled_order


def test_a_life_is_seen_by_the_newest_controller_only():
    life = Life()
    calls = [threading.Thread(target=life.outlive, daemon=True) for _ in range(2)]
    before = life._over
    calls[0].start()
    assert soon(lambda: life._over is not before)
    assert calls[0].is_alive()
    calls[1].start()
    calls[0].join(PATIENCE_S)
    assert (calls[0].is_alive(), calls[1].is_alive()) == (False, True)
