"""Other nodes for a live run: what a user may ask for, and what is refused with which numbers."""

import http.client
import json
import threading

import pytest
from control_drive import running
from waiting import PATIENCE_S

from remesh.actors.controller.wishes import Wishes
from remesh.actors.run.contact import Contact, answer_of
from remesh.actors.serving.status_server import StatusServer
from remesh.actors.serving.whole_request import MAX_BODY_BYTES
from remesh.orchestrator.control.words.events import NodeDraining, ScaleRequested
from remesh.orchestrator.user_errors import UnreachableError, UserError

TOKEN = "0123456789abcdef"


class Asked:
    """The wishes of a run of three nodes, which may use two to four of them, over HTTP."""

    def __init__(self):
        self.events = []
        nodes = (("head", 1), ("10.0.0.2-ab", 1), ("10.0.0.3-cd", 1))
        self.drive = running(5, nodes=nodes, max_dp=4, min_nodes=2, max_nodes=4)
        wishes = Wishes(self.drive.controller, threading.Lock(), self.events.append)
        actions = {"/scale": wishes.scale, "/drain": wishes.drain}
        self.server = StatusServer({}, TOKEN, actions=actions)

    def tell(self, path, token=TOKEN, **wish):
        where = {"host": self.server.host, "port": self.server.port, "token": token}
        contact = Contact(run="", address="", pid=1, started_s=0.0, **where)
        return answer_of(contact, path, wish)["text"]


@pytest.fixture
def asked():
    asked = Asked()
    yield asked
    asked.server.close()


def test_a_number_of_nodes_within_the_bounds_is_passed_on(asked):
    assert asked.tell("/scale", nodes=2) == "3 nodes are in use, 2 wanted"
    assert asked.tell("/scale", nodes=4).endswith("it grows when there is another")
    assert asked.events == [ScaleRequested(nodes=2), ScaleRequested(nodes=4)]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (1, "1 node is fewer than elastic.min_nodes = 2"),
        (5, "5 nodes are more than elastic.max_nodes = 4"),
        ("many", "nodes = many: expected an integer"),
    ],
)
def test_a_number_beyond_the_bounds_is_refused_with_both(asked, nodes, reason):
    with pytest.raises(UserError, match=reason):
        asked.tell("/scale", nodes=nodes)
    assert asked.events == []


def test_a_node_is_drained_by_its_name_or_its_address(asked):
    answer = asked.tell("/drain", node="10.0.0.2")
    assert answer == "10.0.0.2-ab is leaving; 2 nodes stay in use"
    asked.tell("/drain", node="10.0.0.3-cd")
    assert [event.node for event in asked.events] == ["10.0.0.2-ab", "10.0.0.3-cd"]


def test_whoever_drains_below_the_minimum_is_told(asked):
    asked.drive.do(NodeDraining(node="10.0.0.2-ab", cause="Ray drains it"))
    assert asked.tell("/drain", node="10.0.0.3").endswith(
        "1 node stays in use, fewer than elastic.min_nodes = 2: the run waits"
    )


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("10.0.0.9", "10.0.0.9: the run knows no such node; there are head, 10.0.0.2-ab"),
        ("head", "head is the head, which holds the cluster together; stop the run"),
        ("10.0.0.2", "10.0.0.2 has left already, or is leaving"),
    ],
)
def test_a_node_that_cannot_be_drained_is_refused_with_the_reason(asked, node, reason):
    asked.drive.do(NodeDraining(node="10.0.0.2-ab", cause="Ray drains it"))
    with pytest.raises(UserError, match=reason):
        asked.tell("/drain", node=node)


def code_of(server, path, body, headers):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request("POST", path, body=body, headers=headers)
    code = connection.getresponse().status
    connection.close()
    return code


def test_nothing_is_changed_without_the_token(asked):
    wish = json.dumps({"nodes": 2})
    for headers in ({}, {"Authorization": "Bearer x"}):
        assert code_of(asked.server, "/scale", wish, headers) == 401
    assert asked.events == []


@pytest.mark.parametrize("body", ["", "{", "[]", "2", "[" * 50_000])
def test_a_body_that_is_no_object_is_refused(asked, body):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert code_of(asked.server, "/scale", body, headers) == 400
    assert code_of(asked.server, "/none", body, headers) == 404
    long = {**headers, "Content-Length": str(MAX_BODY_BYTES + 1)}
    assert code_of(asked.server, "/scale", None, long) == 400


def test_a_controller_that_is_gone_is_unreachable(asked):
    asked.server.close()
    with pytest.raises(UnreachableError, match="does not answer"):
        asked.tell("/scale", nodes=2)
