"""What users ask a live run for from another shell: other nodes, or its end.

What cannot be is refused here, with the numbers.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from remesh.orchestrator.accounts.view import NodeView, View, view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.membership import NodeState
from remesh.orchestrator.control.words.events import (
    Event,
    NodeDraining,
    ScaleRequested,
    StopRequested,
)
from remesh.orchestrator.control.words.options import MANY_NODES, Options
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count

LEFT = (NodeState.LEAVING, NodeState.DRAINED)


class Wishes:
    """Each answer is a sentence under `text`. Raises: UserError for what cannot be."""

    def __init__(self, machine: Controller, lock: Lock, post: Callable[[Event], None]) -> None:
        self._machine = machine
        self._lock = lock
        self._post = post
        self._stops = False

    def scale(self, wish: Mapping[str, Any]) -> dict[str, str]:
        """Use so many nodes: `{"nodes": N}`."""
        nodes = _number(wish.get("nodes"), self._machine.options)
        used = sum(node.state == NodeState.USED for node in self._view().nodes)
        self._post(ScaleRequested(nodes=nodes))
        more = "; it grows when there is another" if nodes > used else ""
        return {"text": f"{count(used, 'node', 'is', 'are')} in use, {nodes} wanted{more}"}

    def drain(self, wish: Mapping[str, Any]) -> dict[str, str]:
        """Leave a node, given by its name or its address: `{"node": NAME}`."""
        view = self._view()
        node = _node(view, wish.get("node"))
        self._post(NodeDraining(node=node.node, cause="somebody asked for it"))
        others = sum(n.state == NodeState.USED for n in view.nodes if n is not node)
        need = self._machine.options.min_nodes
        stay = count(others, "node", "stays", "stay")
        waits = f", fewer than elastic.min_nodes = {need}: the run waits" if others < need else ""
        return {"text": f"{node.node} is leaving; {stay} in use{waits}"}

    def stop(self, wish: Mapping[str, Any]) -> dict[str, str]:
        """End at the next step boundary, saved: `{}`. A second one is the same wish."""
        del wish
        self._view()
        with self._lock:
            again = self._stops or bool(self._machine.state.stop_reason)
            self._stops = True
        if again:
            return {"text": "it is stopping already"}
        self._post(StopRequested(reason="stopped by the user", wish="user"))
        return {"text": "stopping at the next step boundary"}

    def _view(self) -> View:
        with self._lock:
            view = view_of(self._machine)
        if view.ended:
            raise UserError(f"the run is over: {view.phase}")
        return view


def _number(nodes: object, options: Options) -> int:
    low, high = options.min_nodes, options.max_nodes
    if not isinstance(nodes, int):
        raise UserError(f"nodes = {nodes}: expected an integer")
    asked = count(nodes, "node", "is", "are")
    if nodes < low:
        raise UserError(f"{asked} fewer than elastic.min_nodes = {low}")
    if nodes > high:
        limit = "there can ever be" if high == MANY_NODES else f"elastic.max_nodes = {high}"
        raise UserError(f"{asked} more than {limit}")
    return nodes


def _node(view: View, name: object) -> NodeView:
    """The node of this name or address that has not left. Raises: UserError."""
    named = [node for node in view.nodes if name in (node.node, node.node.rpartition("-")[0])]
    staying = [node for node in named if node.state not in LEFT]
    if not named:
        there = ", ".join(node.node for node in view.nodes) or "none"
        raise UserError(f"{name}: the run knows no such node; there are {there}")
    if not staying:
        raise UserError(f"{name} has left already, or is leaving")
    if staying[0].head:
        raise UserError(f"{name} is the head, which holds the cluster together; stop the run")
    return staying[0]
