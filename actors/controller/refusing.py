"""A controller that cannot go on from the one before: it ends what that one has started.

It does not know what that is, so it asks Ray by the names that the run's actors have. It stays for
as long as its driver may still ask why.
"""

from contextlib import suppress
from typing import Any

import ray
from ray.util import list_named_actors

from remesh.actors.links.ray_agents import AGENT, CONTROL
from remesh.actors.orders import NAMESPACE, RunSpec
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.user_errors import RemeshError


def refused(error: RemeshError, options: Options) -> RunStatus:
    """What the driver is told."""
    return RunStatus(
        phase="failed",
        step=options.first_step,
        steps=options.steps,
        ended=True,
        status="failed",
        reason=str(error),
    )


def end_all_of(spec: RunSpec) -> None:
    """End every actor of the run but its controller; agents take along what is on their nodes."""
    for found in list_named_actors(all_namespaces=True):
        name = found["name"]
        ours = found["namespace"] == NAMESPACE and name.startswith(f"remesh-{spec.run}-")
        if ours and name != spec.controller:
            with suppress(ValueError):  # gone by now
                _end(ray.get_actor(name, NAMESPACE), is_agent=AGENT in name)


def _end(actor: Any, *, is_agent: bool) -> None:
    if is_agent:
        actor.end.options(concurrency_group=CONTROL).remote()
    else:
        ray.kill(actor)
