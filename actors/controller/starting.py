"""A run's controller as an actor: started on the head, found again by the run's name.

Ray reads its token from the environment as it is imported, so it is imported only once the cluster
is known. Whoever finds an actor loads its class: so the class that Ray knows is a door, and what is
behind it is loaded in its own process only.
"""

from typing import TYPE_CHECKING, Any

from remesh.actors.orders import HEAD, NAMESPACE, RunSpec, controller_name
from remesh.orchestrator.control.words.options import Options

if TYPE_CHECKING:
    from remesh.actors.agent.words import NodeAnswer, NodeWord
    from remesh.orchestrator.control.words.events import Event
    from remesh.orchestrator.job.driver_words import RunStatus

CONTROLLER_THREADS = {"inbox": 1, "beats": 32, "driver": 2}


class ControllerActor:
    """The door to what run_controller.py does; what each method is for stands there."""

    def __init__(self, spec: RunSpec, options: Options) -> None:
        from remesh.actors.controller.run_controller import RunController  # noqa: PLC0415

        self._run = RunController(spec, options)

    def hear(self, word: "NodeWord") -> "NodeAnswer":
        return self._run.hear(word)

    def post(self, event: "Event") -> None:
        self._run.post(event)

    def poll(self, seen: int) -> "RunStatus":
        return self._run.poll(seen)

    def stop(self, reason: str) -> None:
        self._run.stop(reason)

    def end(self) -> None:
        self._run.end()


def start_controller(spec: RunSpec, options: Options) -> Any:
    """The run's controller, named and detached, on the head node; Ray restarts it if it dies."""
    import ray  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

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
