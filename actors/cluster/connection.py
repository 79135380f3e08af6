"""A driver's connection to a Ray cluster: one that runs already, or one started for the command.

Ray reads its token from the environment as it is imported, so it is imported only once the cluster
is known.
"""

import os
import socket
from collections.abc import Callable
from typing import Any

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.orders import NAMESPACE
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UnreachableError, UserError
from remesh.parallel.doors.addresses import parted

REACH_LIMIT_S = 5.0


def connect(
    job: Job, options: RunOptions, load: Callable[[], object] = lambda: None
) -> LocalCluster | None:
    """Connect to the cluster that the options name; start one, and return it, if they name none.

    `load` may import what needs Ray, which is done while nodes are started.
    Raises: UserError if that is no address, UnreachableError.
    """

    def meanwhile(environment: dict[str, str]) -> None:
        os.environ.update(environment)
        load()

    if options.address is not None:
        _check_reachable(options.address)
        _init(options.address)
        return None
    cluster = LocalCluster.start(
        nodes=options.nodes,
        workers_per_node=options.workers_per_node,
        spares=job.elastic.spares,
        warm=True,
        meanwhile=meanwhile,
    )
    try:
        _init(cluster.address)
        cluster.wait_until_joined(_living_hosts)
    except BaseException:
        disconnect(cluster)
        raise
    return cluster


def disconnect(cluster: LocalCluster | None) -> None:
    """Leave the cluster; end it if it was started here."""
    import ray  # noqa: PLC0415

    ray.shutdown()
    if cluster:
        cluster.close()


def nodes() -> list[dict[str, Any]]:
    """Those of the cluster that this process is connected to, as Ray lists them."""
    import ray  # noqa: PLC0415

    found: list[dict[str, Any]] = ray.nodes()
    return found


def node_memory() -> list[int]:
    """Bytes of memory that Ray gives away on each living node that has room for a worker."""
    resources = [node["Resources"] for node in nodes() if node["Alive"]]
    return [
        int(found["memory"])
        for found in resources
        if "memory" in found and max(found.get("CPU", 0), found.get("GPU", 0)) >= 1
    ]


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes. Raises: UserError if it is none, UnreachableError."""
    where = _where(address)
    if where is None:
        raise UserError(
            f"--address {address}: expected HOST:PORT of a running Ray head, such as 10.0.0.1:6379"
        )
    try:
        socket.create_connection(where, timeout=REACH_LIMIT_S).close()
    except OSError as error:
        raise UnreachableError(f"--address {address}: no Ray head answers there: {error}") from None


def _where(address: str) -> tuple[str, int] | None:
    """Host and port, None if it is something else, such as the URL of a job server."""
    try:
        return None if "/" in address else parted(address)
    except ValueError:
        return None


def _init(address: str) -> None:
    import ray  # noqa: PLC0415

    from remesh.actors.cluster.private_ray import (  # noqa: PLC0415
        silence_raylet_lines,
        without_core_lines,
    )

    silence_raylet_lines()
    settings = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        with without_core_lines():
            ray.init(address=address, **settings)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).partition("\n")[0]
        raise UnreachableError(
            f"cannot connect to the Ray cluster at {address}: {reason}"
        ) from None


def _living_hosts() -> set[str]:
    import ray  # noqa: PLC0415

    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
