"""Every private Ray call stands here; a test pins the Ray version that they were tried with."""

from ray._private import worker as ray_worker

TRIED_WITH = "2.60.0"


def silence_raylet_lines() -> None:
    """Keep "(raylet) ..." lines off standard output; `log_to_driver=False` does not."""
    ray_worker._worker_logs_enabled = False  # noqa: SLF001
