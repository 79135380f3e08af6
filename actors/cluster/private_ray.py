"""Every private Ray call stands here; a test pins the Ray version that they were tried with."""

from ray._private import state as ray_state
from ray._private import worker as ray_worker

TRIED_WITH = "2.60.0"


def silence_raylet_lines() -> None:
    """Keep "(raylet) ..." lines off standard output; `log_to_driver=False` does not."""
    ray_worker._worker_logs_enabled = False  # noqa: SLF001


def draining_nodes() -> dict[str, float | None]:
    """Ids of the nodes that are about to leave, with the moment (Unix time) if it is known.

    `ray.nodes()` does not tell. A node that has gone is not among them any more.
    """
    deadlines_ms = ray_state.state.get_draining_nodes()
    return {node_id: at_ms / 1000 if at_ms else None for node_id, at_ms in deadlines_ms.items()}
