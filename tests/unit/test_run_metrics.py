"""The metrics' port: who may read what, and what happens when the port is taken."""

import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from tallied_drive import through_everything
from waiting import PATIENCE_S

from remesh.actors.history.journal_files import Journal
from remesh.actors.history.replay import replayed
from remesh.actors.serving.metrics import render
from remesh.actors.serving.picture import Picture
from remesh.actors.serving.run_metrics import RunMetrics
from remesh.actors.serving.status_server import StatusServer
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.job.tables.run_tables import MetricsTable

NODE_IP = "127.0.0.2"


@pytest.fixture(scope="module")
def drive():
    return through_everything()


@pytest.fixture
def metrics(drive):
    return RunMetrics(drive.controller, "tiny", drive.tally, threading.Lock())


def get(url, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=PATIENCE_S) as answer:
        return answer.headers["Content-Type"], answer.read()


def serve(metrics, port, host="127.0.0.1"):
    """The sentences that were said while the port was open, and what `/sd` answered."""
    said = []
    with metrics.serving(MetricsTable(port=port, host=host), NODE_IP, said.append):
        if not said or "no metrics" in said[-1]:
            return said, None
        url = said[-1].removeprefix("metrics are at ")
        kind, body = get(url)
        assert kind.startswith("text/plain; version=0.0.4")
        assert b'remesh_step{run="tiny"} 20.0' in body
        kind, body = get(url.replace("/metrics", "/sd"))
        assert kind == "application/json"
        return said, json.loads(body)


def test_a_free_port_is_picked_announced_and_found_by_discovery(metrics):
    said, found = serve(metrics, 0)
    (target,) = found[0]["targets"]
    assert said == [f"metrics are at http://{target}/metrics"]
    assert target.startswith("127.0.0.1:")
    assert all(label.startswith("__meta_") for label in found[0]["labels"])


def test_another_port_is_used_where_the_wanted_one_is_taken(metrics):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        said, found = serve(metrics, port)
    assert said[0].startswith(f"metrics.port = {port} on 127.0.0.1 cannot be used: ")
    assert said[0].endswith("; another port is used")
    assert str(port) not in found[0]["targets"][0]


def test_a_port_that_was_closed_a_moment_ago_is_used_again(metrics):
    _, found = serve(metrics, 0)
    port = int(found[0]["targets"][0].rpartition(":")[2])
    said, _ = serve(metrics, port)
    assert said == [f"metrics are at http://127.0.0.1:{port}/metrics"]


def test_without_any_port_the_run_goes_on_and_says_so(metrics):
    said, _ = serve(metrics, 9750, host="192.0.2.1")
    assert len(said) == 1
    assert said[0].endswith("; there are no metrics")


def test_discovery_names_the_node_where_every_address_is_served(metrics):
    _, found = serve(metrics, 0, host="0.0.0.0")
    assert found[0]["targets"][0].startswith(f"{NODE_IP}:")


def test_a_job_without_a_port_opens_none(metrics):
    said = []
    with metrics.serving(MetricsTable(), NODE_IP, said.append):
        assert said == []


def test_at_the_status_port_the_token_is_needed(metrics):
    with closing(StatusServer(metrics.answers(), token="secret")) as server:
        url = f"http://{server.host}:{server.port}/metrics"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(url)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(url, token="guess")
        assert b"remesh_step" in get(url, token="secret")[1]


def test_nothing_else_is_to_be_had_at_the_metrics_port(metrics):
    with closing(StatusServer(metrics.answers(), token=None)) as server:
        url = f"http://{server.host}:{server.port}"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/status")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/metrics", data=b"x", timeout=PATIENCE_S)
        assert b"remesh_step" in get(f"{url}/metrics?name=all")[1]


def test_a_restarted_controller_counts_on_from_the_journal(drive):
    options, view = drive.controller.options, view_of(drive.controller)
    tally = replayed([Journal(incarnation=1, options=options, lines=tuple(drive.lines))]).tally
    shown = [
        render(Picture(run="tiny", version="1", view=view, tally=known))
        for known in (tally, drive.tally)
    ]
    assert shown[0] == shown[1]
