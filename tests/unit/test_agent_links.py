"""Whole messages between an agent and its processes, of which neither holds up the agent."""

import pickle
import socket
import threading

import pytest

from remesh.actors.node.link import ProcessEnd, framed, link


@pytest.fixture
def ends():
    agent, theirs = link()
    yield agent, theirs
    agent.close()
    theirs.close()


def test_messages_arrive_whole_and_in_order_however_they_are_cut(ends):
    agent, theirs = ends
    data = framed("one") + framed(["two"] * 1000)
    found = []
    for start in range(0, len(data), 7):
        theirs.sendall(data[start : start + 7])
        found += agent.received()
    assert found == ["one", ["two"] * 1000]
    assert not agent.is_over


def test_what_a_process_says_before_its_end_is_heard(ends):
    agent, theirs = ends
    ProcessEnd(theirs).send("last word")
    theirs.close()
    assert agent.received() == ["last word"]
    assert agent.is_over
    agent.send("nobody is there")
    assert not agent.waits


def test_a_process_that_takes_nothing_in_holds_up_nobody(ends):
    agent, theirs = ends
    large = b"x" * (1 << 22)
    agent.send(large)
    agent.send("small")
    assert agent.waits
    process, heard = ProcessEnd(theirs), []
    reader = threading.Thread(target=lambda: heard.extend((process.receive(), process.receive())))
    reader.start()
    while agent.waits:
        agent.flush()
    reader.join()
    assert heard == [large, "small"]


def test_the_end_of_the_agent_is_the_end_of_the_line(ends):
    agent, theirs = ends
    agent.close()
    with pytest.raises(EOFError):
        ProcessEnd(theirs).receive()


def test_an_end_is_inherited_by_nobody(ends):
    agent, theirs = ends
    assert not theirs.get_inheritable()
    assert not socket.socket(fileno=socket.dup(agent.fileno())).get_inheritable()


def test_a_message_is_encoded_once(ends):
    agent, _ = ends
    counted = Counted()
    agent.send(counted)
    agent.flush()
    assert counted.times == 1


class Counted:
    def __init__(self):
        self.times = 0

    def __reduce__(self):
        self.times += 1
        return (pickle.loads, (pickle.dumps(1),))
