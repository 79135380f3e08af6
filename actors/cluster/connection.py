"""A driver's connection to a Ray cluster: one that runs already, or one started for the command.

Ray reads its token from the environment as it is imported, so it is imported only once the cluster
is known.
"""

import os
import socket
from typing import Any

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.orders import HEAD, NAMESPACE, RunSpec, controller_name
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UnreachableError

CONTROLLER_THREADS = {"inbox": 1, "beats": 4, "driver": 2}
REACH_LIMIT_S = 5.0


def connect(job: Job, options: RunOptions) -> LocalCluster | None:
    """Connect to the cluster that the options name; start one, and return it, if they name none.

    Raises: UnreachableError.
    """
    if options.address is not None:
        _check_reachable(options.address)
        _init(options.address)
        return None
    cluster = LocalCluster.start(
        nodes=options.nodes,
        workers_per_node=options.workers_per_node,
        spares=job.elastic.spares,
    )
    try:
        os.environ.update(cluster.environment())
        _init(cluster.address)
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


def start_controller(spec: RunSpec, options: Options) -> Any:
    """The run's controller, named and detached, on the head node; Ray restarts it if it dies."""
    import ray  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    from remesh.actors.controller.controller_actor import ControllerActor  # noqa: PLC0415

    return (
        ray.remote(concurrency_groups=CONTROLLER_THREADS)(ControllerActor)
        .options(
            name=spec.controller,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=-1,  # what it was told while it died is told again
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(_head_node(), soft=False),
        )
        .remote(spec, options)
    )


def find_controller(run: str) -> Any | None:
    """The controller of a run that is alive or about to be started again, None if it is gone."""
    import ray  # noqa: PLC0415

    try:
        return ray.get_actor(controller_name(run), namespace=NAMESPACE)
    except ValueError:
        return None


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes. Raises: UnreachableError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UnreachableError(f"--address {address}: expected HOST:PORT of a running Ray head")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise UnreachableError(f"--address {address}: no Ray head answers there: {error}") from None


def _init(address: str) -> None:
    import ray  # noqa: PLC0415

    from remesh.actors.cluster.private_ray import silence_raylet_lines  # noqa: PLC0415

    silence_raylet_lines()
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).partition("\n")[0]
        raise UnreachableError(
            f"cannot connect to the Ray cluster at {address}: {reason}"
        ) from None


def _head_node() -> str:
    """The id of the node that a controller belongs on: the head."""
    import ray  # noqa: PLC0415

    heads = [node for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]]
    node_id: str = heads[0]["NodeID"]
    return node_id
