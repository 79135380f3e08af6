"""A Ray cluster of several nodes on this machine, owned by the command that started it.

Each node is `ray start --block` (local_node.py), without what nobody asks (light_node.py), in its
own session with an address of its own from the loopback range, so that killing a session is a
node's death. A supervisor process (supervisor.py) holds them; it ends them all when the pipe to
this process closes, even by `kill -9`.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from remesh.actors.cluster.light_node import HEAD, HOOK, listens
from remesh.actors.cluster.warm_start import EARLY, NICENESS
from remesh.actors.node.leftovers import sweep_all
from remesh.actors.node.processes import kill, look, session_members
from remesh.orchestrator.user_errors import UnreachableError

FIRST_HOST = 2  # Ray rewrites 127.0.0.1
LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 80 * 2**20
REAP_LIMIT_S = 10.0
PORT_RANGE = range(20500, 32000)  # outside of 10002-19999 (Ray's workers) and the ephemeral ports
# Ray makes all of its workers as nice as ranks are here. A controller and an agent load for a
# second and do little afterwards: behind ranks on every processor it would take half as long again.
PRECEDENCE = {"RAY_worker_niceness": "10", NICENESS: "15"}
HEALTH = {
    "RAY_health_check_initial_delay_ms": "3000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
UNTOLD = {"RAY_task_events_report_interval_ms": "0"}  # nobody asks Ray what its tasks did when


class LocalCluster:
    """`address` and `environment` are what a driver needs to connect.

    `job_server` is where jobs can be submitted, None where the head was started without.
    """

    def __init__(
        self,
        *,
        token: str,
        folder: Path,
        supervisor: subprocess.Popen[bytes],
        warm: bool = False,
    ) -> None:
        self.token = token
        self.sessions: list[int] = []
        self.address = ""
        self.job_server: str | None = None
        self._folder = folder
        self._supervisor = supervisor
        self._warm = warm

    @classmethod
    def start(
        cls,
        *,
        nodes: int,
        workers_per_node: int,
        spares: int = 0,
        job_server: bool = False,
        warm: bool = False,
        meanwhile: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> Self:
        """Nodes with room for `workers_per_node` each, and for `spares` more on the head.

        All of them are up when it returns: a run that knows only some would form a mesh of those
        first, and a second one soon after. `meanwhile` is called while they load, with what
        `environment` gives; if they are to be `warm`, each loads what ranks need beside Ray.

        Cost: the job server, which is Ray's dashboard, takes 0.3 GB and some seconds. Without it
        all nodes load side by side, and Ray without what nobody asks (light_node.py).
        """
        # Ray limits the length of socket paths, so it is not TMPDIR.
        folder = Path(tempfile.mkdtemp(prefix="remesh-", dir="/tmp"))
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "remesh.actors.cluster.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        # Ray reads the token once a process: a second cluster has to take the first one's.
        token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(16)
        cluster = cls(token=token, folder=folder, supervisor=supervisor, warm=warm)
        if job_server:
            cluster.job_server = f"http://{LOOPBACK}:{_free_port(LOOPBACK)}"
        try:
            cluster.add_node(num_cpus=workers_per_node + spares)
            if job_server:
                cluster._wait_for(0, lambda: listens(cluster.address))
            for _ in range(nodes - 1):
                cluster.add_node(num_cpus=workers_per_node)
            meanwhile(cluster.environment())
            for index in range(nodes):
                cluster._wait_for(index, partial(cluster._serves, index))
        except BaseException:
            cluster.close()
            raise
        return cluster

    def add_node(self, *, num_cpus: int) -> int:
        """The session id of a new node; the first one is the head."""
        index = len(self.sessions)
        host = _host(index)
        role = ["--address", self.address] if self.address else self._head_arguments(host)
        self.sessions.append(
            self._ask(
                {
                    "argv": [*_NODE_ARGUMENTS, *role, *self._node_arguments(host, index, num_cpus)],
                    "env": self._node_environment(index),
                    "log": str(self._folder / f"node-{index}.log"),
                }
            )
        )
        return self.sessions[-1]

    def wait_until_joined(
        self, hosts: Callable[[], Collection[str]], limit_s: float = 30.0
    ) -> None:
        """Returns once `hosts`, the addresses of the nodes that the head knows, has all of them.

        A node can die between its start and its joining. Raises: UnreachableError, as `start`.
        """
        for index in range(len(self.sessions)):
            self._wait_for(index, partial(_is_in, hosts, _host(index)), limit_s)

    def environment(self) -> dict[str, str]:
        """What a client needs beside the address."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, **UNTOLD}

    def close(self) -> None:
        """End every process of the cluster; returns when they are gone."""
        assert self._supervisor.stdin
        with suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        if self._supervisor.wait(timeout=30) != 0:
            self._end_without_it()
        assert self._supervisor.stdout
        self._supervisor.stdout.close()

    def _end_without_it(self) -> None:
        """The supervisor was killed, and the nodes with it; frozen processes of theirs are left."""
        sessions, limit_s = set(self.sessions), time.monotonic() + REAP_LIMIT_S
        while (left := session_members(sessions)) and time.monotonic() < limit_s:
            for pid in left:
                kill(pid)
            time.sleep(0.01)
        shutil.rmtree(self._folder, ignore_errors=True)
        sweep_all()

    def _wait_for(self, index: int, ready: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Raises: UnreachableError with a node's last line if it ends or does not get ready."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + limit_s and look(self.sessions[index]):
            if ready():
                return
            time.sleep(0.05)
        lines = (self._folder / f"node-{index}.log").read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
        node = f"node {index + 1} of {len(self.sessions)} has not joined"
        waited = f"after {time.monotonic() - began_s:.0f} s"
        raise UnreachableError(
            f"the local Ray {node if index else 'head did not start on'} {self.address} {waited}: "
            f"{last}"
        )

    def _serves(self, index: int) -> bool:
        """The node is up. Without that of the head drivers wait for a minute and learn no cause."""
        return (self._folder / f"n{index}" / "session_latest" / "sockets" / "raylet").exists()

    def _head_arguments(self, host: str) -> list[str]:
        port = _free_port(host)
        self.address = f"{host}:{port}"
        # Unless it is told otherwise, Ray's client server takes the same port in every cluster.
        head = ["--head", "--port", str(port), "--ray-client-server-port", str(_free_port(host))]
        if self.job_server is None:
            return [*head, "--include-dashboard", "false"]
        dashboard_port = self.job_server.rpartition(":")[2]
        return [*head, "--include-dashboard", "true", "--dashboard-host", LOOPBACK,
                "--dashboard-port", dashboard_port]  # fmt: skip

    def _node_arguments(self, host: str, index: int, num_cpus: int) -> list[str]:
        folder = self._folder / f"n{index}"
        return ["--node-ip-address", host, "--temp-dir", str(folder), "--num-cpus", str(num_cpus),
                "--num-gpus", "0", "--object-store-memory", str(OBJECT_STORE_BYTES),
                "--dashboard-agent-listen-port", self._agent_port(host, index)]  # fmt: skip

    def _agent_port(self, host: str, index: int) -> str:
        """The job server has to know the head's agent before that chose a port by itself."""
        return "0" if index or self.job_server is None else str(_free_port(host))

    def _node_environment(self, index: int) -> dict[str, str]:
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_MEMORY_MONITOR": "1"}
        quiet["RAY_memory_monitor_refresh_ms"] = "0"
        # Ray would serve its metrics at a port of every address, without a token.
        quiet["RAY_enable_metrics_collection"] = "false"
        if self.job_server is None:
            # The processes of a run's actors load beside the nodes, and not when it asks for them.
            quiet |= {"RAY_START_HOOK": HOOK, HEAD: self.address, "RAY_enable_worker_prestart": "1"}
        if self._warm:
            quiet[EARLY] = str(self._folder / f"n{index}.warm")
        own = {"OMP_NUM_THREADS": "1", "TMPDIR": str(self._folder)}  # a killed node clears nothing
        return {**os.environ, **self.environment(), **HEALTH, **PRECEDENCE, **quiet, **own}

    def _ask(self, request: dict[str, object]) -> int:
        assert self._supervisor.stdin
        assert self._supervisor.stdout
        with suppress(BrokenPipeError):
            self._supervisor.stdin.write(json.dumps(request).encode() + b"\n")
            self._supervisor.stdin.flush()
        answer = self._supervisor.stdout.readline()
        if not answer:
            raise UnreachableError("the local cluster's supervisor ended; see its lines above")
        return int(answer)


_NODE_ARGUMENTS = [sys.executable, "-m", "remesh.actors.cluster.local_node", "start", "--block",
                   "--disable-usage-stats", "--log-style", "record", "--include-log-monitor",
                   "false"]  # fmt: skip


def _host(index: int) -> str:
    return f"127.0.0.{FIRST_HOST + index}"


def _is_in(hosts: Callable[[], Collection[str]], host: str) -> bool:
    return host in hosts()


def _free_port(host: str) -> int:
    start = PORT_RANGE.start + secrets.randbelow(len(PORT_RANGE) // 2)
    for port in range(start, PORT_RANGE.stop):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise UnreachableError(f"no free port on {host} between {start} and {PORT_RANGE.stop}")
