"""Where a live run is found and asked: its server, its token, and the file that tells of both."""

import os
from collections.abc import Callable

import ray

from remesh.actors.cluster import this_machine as own_machine
from remesh.actors.cluster.connection import node_memory
from remesh.actors.controller.asked_stacks import AskAgents, AskedStacks
from remesh.actors.controller.layout_wishes import FreeMemory, LayoutWishes
from remesh.actors.controller.takeover import Beginning, open_server
from remesh.actors.controller.wishes import Wishes
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.liveness import this_machine, this_network
from remesh.actors.run.run_view import RunView
from remesh.actors.serving.run_metrics import RunMetrics
from remesh.actors.serving.status_server import LOOPBACK, StatusServer
from remesh.orchestrator.control.words.events import Event
from remesh.parallel.doors.addresses import joined

Post = Callable[[Event], None]


class FrontDoor:
    """`post` takes wishes; `ask_agents` knows where ranks stand in the code."""

    def __init__(self, begun: Beginning, folder: RunFolder, view: RunView) -> None:
        self._begun = begun
        self._folder = folder
        self._view = view

    def open(self, metrics: RunMetrics, post: Post, ask_agents: AskAgents) -> StatusServer:
        """Open from now on, and told in the run's folder."""
        spec, machine = self._begun.spec, self._begun.machine
        wishes = Wishes(machine, self._view.lock, post)
        layouts = LayoutWishes(machine, self._view.lock, post, spec, self._memory)
        stacks = AskedStacks(machine, self._view.lock, ask_agents)
        actions = {
            "/scale": wishes.scale,
            "/layout": layouts.ask,
            "/drain": wishes.drain,
            "/stop": wishes.stop,
            "/stacks": stacks.ask,
        }
        answers = {"/status": self._view.status, **metrics.answers()}
        host = LOOPBACK if spec.own_cluster else ray.util.get_node_ip_address()
        server, token = open_server(answers, actions, self._begun.contact, host)
        metrics.also_at(joined(server.host, server.port))
        self._folder.publish(
            Contact(
                run=spec.run,
                host=server.host,
                port=server.port,
                token=token,
                address=ray.get_runtime_context().gcs_address,
                pid=os.getpid(),
                started_s=self._begun.now_s,
                submission=spec.submission,
                metrics_port=metrics.port,
                machine=this_machine(),
                lease_s=machine.options.timers.lease_s,
                network=this_network(),
            )
        )
        return server

    def _memory(self) -> FreeMemory:
        """Nodes of a cluster that was started for the run share this machine's."""
        spec = self._begun.spec
        if spec.own_cluster:
            return FreeMemory(here=own_machine.this_machine(spec.job).free_bytes)
        return FreeMemory(nodes=node_memory())
