"""Every private Ray call stands here; a test pins the Ray version that they were tried with."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray._private import node as ray_node
from ray._private import services as ray_services
from ray._private import state as ray_state
from ray._private import worker as ray_worker

TRIED_WITH = "2.60.0"
_LEVEL = "RAY_BACKEND_LOG_LEVEL"
_RAYLET = "raylet"


def silence_raylet_lines() -> None:
    """Keep "(raylet) ..." lines off standard output; `log_to_driver=False` does not."""
    ray_worker._worker_logs_enabled = False  # noqa: SLF001


@contextmanager
def without_core_lines() -> Iterator[None]:
    """A Ray that is initialised meanwhile writes no lines of its core to standard error.

    They come about once a second when the head is gone, one for each call that is made again. That
    it was asked not to is one more line, which goes nowhere.
    """
    before, level = os.dup(2), os.environ.get(_LEVEL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.environ[_LEVEL] = "fatal"
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)
        os.environ.pop(_LEVEL)
        if level is not None:
            os.environ[_LEVEL] = level


def draining_nodes() -> dict[str, float | None]:
    """Ids of the nodes that are about to leave, with the moment (Unix time) if it is known.

    `ray.nodes()` does not tell. A node that has gone is not among them any more.
    """
    deadlines_ms = ray_state.state.get_draining_nodes()
    return {node_id: at_ms / 1000 if at_ms else None for node_id, at_ms in deadlines_ms.items()}


def actor_table() -> dict[str, Any]:
    """All actors by id, as Ray's head knows them: names, classes, states, nodes."""
    return dict(ray_state.state.actor_table(None))


def free_processors() -> dict[str, float]:
    """By the id of the node."""
    free = ray_state.state.available_resources_per_node()
    return {node_id: float(resources.get("CPU", 0.0)) for node_id, resources in free.items()}


def start_lightly(params: Any, lightened: Callable[[list[str]], list[str]]) -> None:
    """Has the node that this process starts next do without servers, and its raylet be `lightened`.

    There is no flag for it, so for the rest of this process Ray's own functions are others.
    """
    params.ray_client_server_port = None
    params.no_monitor = True
    start = ray_services.start_ray_process

    def start_process(command: list[str], process_type: str, **settings: Any) -> Any:
        wanted = lightened(command) if process_type == _RAYLET else command
        return start(wanted, process_type, **settings)

    ray_services.start_ray_process = start_process
    ray_node.Node.start_api_server = _without_dashboard


def _without_dashboard(*_: Any, **__: Any) -> None:
    """Its address stays unknown."""
