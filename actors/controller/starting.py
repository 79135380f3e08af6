"""A run's controller as an actor: started on the head, found again by the run's name.

Ray reads its token from the environment as it is imported, so it is imported only once the cluster
is known.
"""

from typing import Any

from remesh.actors.orders import HEAD, NAMESPACE, RunSpec, controller_name
from remesh.orchestrator.control.words.options import Options

CONTROLLER_THREADS = {"inbox": 1, "beats": 32, "driver": 2}


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


def _head_node() -> str:
    """The id of the node that a controller belongs on: the head."""
    import ray  # noqa: PLC0415

    heads = [node for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]]
    node_id: str = heads[0]["NodeID"]
    return node_id
