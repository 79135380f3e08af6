"""Agents that are begun before the controller, on the nodes on which it will want some.

A controller and an agent take about as long to load what they need, and a warm process still
longer. So they begin at the same time, wherever it is known what will be decided: the machine that
decides is asked with what it will be told.

It loads ray, which reads its token then: so it is imported only once the cluster is known.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from remesh.actors.links.ray_agents import RayAgents
from remesh.actors.links.watch import joined
from remesh.actors.node.offers import Offers, Room
from remesh.actors.orders import RunSpec
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import StartWorker
from remesh.orchestrator.control.words.events import NodeJoined, RunStarted
from remesh.orchestrator.control.words.options import Options


def begin_agents(spec: RunSpec, options: Options, entries: Iterable[Mapping[str, Any]]) -> None:
    """`entries` are the nodes as Ray lists them. What is not as foreseen costs nothing but time."""
    offers = Offers(spec.job.train.device, lambda _: None)  # the controller says it
    rooms: dict[str, Room] = {}
    news: list[NodeJoined] = []
    for entry in entries:
        if entry["Alive"] and (room := offers.room(entry)):
            news.append(joined(entry, room))
            rooms[news[-1].node] = room
    agents = RayAgents(spec)
    for node in wanted(options, news):
        agents.begin_early(node, rooms[node])


def wanted(options: Options, news: Iterable[NodeJoined]) -> list[str]:
    """The nodes on which a controller with these options starts workers as it begins."""
    machine = Controller(options)
    events: tuple[RunStarted | NodeJoined, ...] = (RunStarted(), *news)
    commands = [command for event in events for command in machine.handle(event, 0.0)]
    return list(dict.fromkeys(one.node for one in commands if isinstance(one, StartWorker)))
