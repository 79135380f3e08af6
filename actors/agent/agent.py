"""The one actor of a node, as Ray starts it: the door to what owner.py does.

It imports little, because its warm process takes longest to be ready, and so is started before
anything else is loaded here.
"""

import os
from typing import TYPE_CHECKING

from remesh.actors.cluster.warm_start import warm
from remesh.actors.node.own_log import divert, log_folder_of

if TYPE_CHECKING:
    from remesh.actors.agent.words import NodeOrders


class Agent:
    """`live` returns when the agent ends; its death is the news of all that it owned.

    `spec` is the RunSpec of this run, pickled. `incarnation` is that of the controller which has it
    started, 0 where it is begun before there is one: it warms up then, and says nothing before a
    controller has told it something.
    """

    def __init__(self, run: str, node: str, incarnation: int, spec: bytes) -> None:
        divert(log_folder_of(run, node), f"agent-{node}")
        first = warm(spec, os.environ)
        from remesh.actors.agent.owner import NodeOwner  # noqa: PLC0415 - see above

        self._owner = NodeOwner(spec, node, incarnation, first)

    def live(self) -> None:
        """Own the node's processes until ended, or until the lease on the controller lapses."""
        self._owner.live()

    def take(self, orders: "NodeOrders") -> int:
        """Returns at once, with the newest controller: the orders of one before it are dropped."""
        return self._owner.take(orders)

    def outlive(self) -> None:
        self._owner.outlive()

    def stacks(self, workers: tuple[str, ...]) -> dict[str, str]:
        """The Python stacks of these workers' processes, as text, or why there are none."""
        return self._owner.stacks(workers)

    def end(self) -> None:
        """End every worker of the run on this node and its vault, then the agent."""
        self._owner.end()
