"""Leaves out of `ray start` what a local cluster has no use for, by Ray's own hook.

`ray start` calls what RAY_START_HOOK names before it starts anything. Left out are the servers of
the dashboard, of Ray's client and of its autoscaler, and on every node the two agents of its
raylet, which serve metrics, jobs and environments of packages: Python processes, which take 4.8 of
the 6.2 s of processor time that two nodes take with them. A cluster with a job server has them all.

A raylet ends with its agents and waits for the ports that they write down, so each has a stand-in
(stand_in.py), which writes that there is none. A node that is started together with its head loads
meanwhile, and waits here until the head can be joined.

Alternatives that lost: flags of `ray start`, of which there is one for the autoscaler only, and a
variant for the others that takes as long; a node of our own made of Ray's classes, since `ray start
--block` also drains, watches and ends.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOOK = f"{__name__}.lighten"
HEAD = "REMESH_HEAD"  # HOST:PORT of the head, in the environment of a node that joins it
JOIN_LIMIT_S = 60.0
LOOK_S = 0.02
HEADS = "--head"  # in the command of its raylet
ACTORS = {True: 2, False: 1}  # of a run on the head, and on another node
BEGUN = "--num_prestart_python_workers"
STAND_IN = Path(__file__).with_name("stand_in.py")
PORTS = {
    "--dashboard_agent_command": (
        "metrics_agent_port",
        "metrics_export_port",
        "dashboard_agent_listen_port",
    ),
    "--runtime_env_agent_command": ("runtime_env_agent_port",),
}


def lighten(params: Any, head: bool) -> None:  # noqa: FBT001 - as Ray calls it
    """For a process that is about to start one node, and nothing else."""
    from remesh.actors.cluster.private_ray import start_lightly  # noqa: PLC0415 - loads ray

    start_lightly(params, lightened)
    if not head:
        wait_for(os.environ[HEAD])


def lightened(raylet: list[str]) -> list[str]:
    """The command of a raylet with stand-ins in the place of its agents.

    And with fewer processes that it begins before anybody asks for them: a run has an actor a node,
    and its controller.
    """
    told = dict(word.split("=", 1) for word in raylet if "=" in word)
    place = (told["--session_dir"], told["--node_id"])
    most = ACTORS[any(_is(HEADS, word) for word in raylet)]
    begun = min(most, int(told.get(BEGUN, most)))
    return [
        f"{BEGUN}={begun}" if _is(BEGUN, word) else _without_agent(word, place) for word in raylet
    ]


def listens(address: str) -> bool:
    """Whether a head is there that nodes can join; its own part of the cluster may still fail."""
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


def wait_for(address: str, limit_s: float = JOIN_LIMIT_S) -> None:
    """Returns when the head listens; at the limit too, and then Ray says what it misses."""
    end_s = time.monotonic() + limit_s
    while not listens(address) and time.monotonic() < end_s:
        time.sleep(LOOK_S)


def _is(name: str, word: str) -> bool:
    return word.partition("=")[0] == name


def _without_agent(word: str, place: tuple[str, str]) -> str:
    name = word.partition("=")[0]
    if name not in PORTS:
        return word
    command = [sys.executable, "-I", "-S", str(STAND_IN), *place, *PORTS[name]]
    return f"{name}={subprocess.list2cmdline(command)}"
