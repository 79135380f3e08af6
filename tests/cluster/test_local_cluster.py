import http.client
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import soon

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.cluster.private_ray import TRIED_WITH, ray_worker
from remesh.actors.node.processes import look, processes, session_members
from remesh.orchestrator.user_errors import UnreachableError

# Parts of Ray that a local cluster does without: servers, and agents by their names and programs.
UNASKED = ["dashboard.py", "ray.util.client", "monitor.py", "agent.py", "DashboardAgent",
           "RuntimeEnvAgent", "runtime_env/agent"]  # fmt: skip

OWNER = """
import json, os, time
import psutil
from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.node.processes import session_members

cluster = LocalCluster.start(nodes=2, workers_per_node=1, spares=1)
os.environ.update(cluster.environment())
import ray

ray.init(address=cluster.address, namespace="test", log_to_driver=False, logging_level="ERROR")
while len([node for node in ray.nodes() if node["Alive"]]) < 2:
    time.sleep(0.05)

class Worker:
    def pid(self):
        return os.getpid()

worker = ray.remote(Worker).options(lifetime="detached", name="worker").remote()
members = set(session_members(cluster.sessions))
told = {
    "hosts": sorted(node["NodeManagerAddress"] for node in ray.nodes()),
    "slots": sorted(node["Resources"]["CPU"] for node in ray.nodes()),
    "worker": ray.get(worker.pid.remote()),
    "sessions": cluster.sessions,
    "supervisor": cluster._supervisor.pid,
    "commands": [
        " ".join(one.info["cmdline"] or [])
        for one in psutil.process_iter(["cmdline"])
        if one.pid in members
    ],
    "folder": str(cluster._folder),
}
print(json.dumps(told), flush=True)
time.sleep(600)
"""


def children():
    return {process.pid for process in processes() if process.parent == os.getpid()}


@pytest.fixture
def owner():
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_two_nodes_stand_and_are_gone_with_their_owner(owner):
    told = json.loads(owner.stdout.readline())
    assert told["hosts"] == ["127.0.0.2", "127.0.0.3"]
    assert told["slots"] == [1, 2]
    sessions = set(told["sessions"])
    assert told["worker"] in session_members(sessions)
    assert [part for part in UNASKED if part in "\n".join(told["commands"])] == []
    os.kill(told["worker"], signal.SIGSTOP)
    owner.kill()
    assert soon(lambda: not session_members(sessions))
    assert soon(lambda: look(told["supervisor"]) is None)
    assert not Path(told["folder"]).exists()


def test_a_head_that_does_not_start_is_told_and_leaves_nothing():
    before = children()
    with pytest.raises(UnreachableError, match=r"the local Ray head did not start on 127.*-7"):
        LocalCluster.start(nodes=1, workers_per_node=-7)
    assert children() == before


def test_a_cluster_leaves_nothing_without_its_supervisor_and_answers_no_stranger():
    """security B4, security B7: frozen processes and the folder go; no metrics are kept."""
    cluster = LocalCluster.start(nodes=1, workers_per_node=1)
    sessions = set(cluster.sessions)
    # Ray's agent comes up last; then it writes down the port of its metrics.
    session = cluster._folder / "n0" / "session_latest"
    noted = soon(
        lambda: [
            text for file in session.glob("metrics_export_port*") if (text := file.read_text())
        ]
    )
    assert noted == ["-1"]
    answered = [port for port in listening(sessions) if http_answers(port)]
    os.kill(session_members(sessions)[-1], signal.SIGSTOP)
    cluster._supervisor.kill()
    cluster.close()
    assert soon(lambda: not session_members(sessions))
    assert not cluster._folder.exists()
    assert answered == []


def listening(sessions):
    """Ports of these sessions' processes that are open on every address."""
    found = [address for pid in session_members(sessions) for address in listeners(pid)]
    assert found
    return {address.port for address in found if address.ip in ("0.0.0.0", "::")}


def listeners(pid):
    """Where a process listens; nowhere once it has ended."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return []
    return [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]


def http_answers(port):
    """Whether what is there is told to anybody over plain HTTP, without a token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def test_private_calls_were_tried_with_this_ray():
    assert importlib.metadata.version("ray") == TRIED_WITH
    assert isinstance(ray_worker._worker_logs_enabled, bool)
