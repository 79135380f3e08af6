"""The metrics of a live run, and the port at which Prometheus finds them without a token."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from importlib.metadata import version
from ipaddress import ip_address
from threading import Lock
from typing import Any

from remesh.actors.serving.metrics import CONTENT_TYPE, render
from remesh.actors.serving.picture import Picture
from remesh.actors.serving.scrapes import Scrapes
from remesh.actors.serving.status_server import Answers, Page, StatusServer
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.phases import ENDED
from remesh.orchestrator.job.tables.run_tables import MetricsTable
from remesh.parallel.doors.addresses import joined

Say = Callable[[str], None]

LOOK_S = 0.2


class RunMetrics:
    """Reads the machine under `lock`, which whoever changes it holds as well.

    `port` is the one that the metrics have of their own, while they are served.
    """

    def __init__(self, machine: Controller, run: str, tally: Tally, lock: Lock) -> None:
        self._machine = machine
        self._run = run
        self._tally = tally
        self._lock = lock
        self._version = version("remesh")
        self._target = ""
        self._scrapes = Scrapes()
        self._ended_s: float | None = None
        self.port: int | None = None

    def note(self, event: Event, now_s: float) -> None:
        """The machine has just handled this event; `lock` is held."""
        self._tally.note(event, now_s, self._machine.state)
        if self._ended_s is None and self._machine.state.phase in ENDED:
            self._ended_s = time.monotonic()

    def answers(self) -> Answers:
        return {"/metrics": self._page, "/sd": self._targets}

    def also_at(self, target: str) -> None:
        """Discovery names this address where the metrics have no port of their own."""
        self._target = self._target or target

    @contextmanager
    def serving(self, table: MetricsTable, node_ip: str, announce: Say) -> Iterator[None]:
        """Answers on the port that the job asks for; on another one if that is taken."""
        server = None if table.port is None else _open(table, self.answers(), announce)
        if server is None:
            yield
            return
        with closing(server):
            host = node_ip if ip_address(server.host).is_unspecified else server.host
            self._target = joined(host, server.port)
            self.port = server.port
            server.tell(self._scrapes.note)
            announce(f"metrics are at http://{self._target}/metrics")
            yield

    def awaited_s(self) -> float:
        """How long Prometheus may take to read how the run ended; 0 once it has, or before that."""
        if self._ended_s is None:
            return 0.0
        return self._scrapes.awaited_s(self._ended_s, time.monotonic())

    def outlast(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Back once Prometheus has read how the run ended; at once if nobody is awaited."""
        while (awaited_s := self.awaited_s()) > 0:
            wait(min(awaited_s, LOOK_S))

    def _page(self) -> Page:
        """The text is made outside of the lock: events must not wait for it."""
        with self._lock:
            view, tally = view_of(self._machine), deepcopy(self._tally)
        picture = Picture(run=self._run, version=self._version, view=view, tally=tally)
        return Page(content_type=CONTENT_TYPE, body=render(picture))

    def _targets(self) -> Any:
        """Prometheus' HTTP discovery; labels of a target must not hide those of the metrics."""
        return [{"targets": [self._target], "labels": {"__meta_remesh_run": self._run}}]


def _open(table: MetricsTable, answers: Answers, announce: Say) -> StatusServer | None:
    """Metrics are no reason to end a training."""
    assert table.port is not None
    try:
        return StatusServer(
            answers, token=None, host=table.host, port=table.port, names=table.names
        )
    except OSError as error:
        reason = f"metrics.port = {table.port} on {table.host} cannot be used: {error.strerror}"
    try:
        server = StatusServer(answers, token=None, host=table.host, names=table.names)
    except OSError:
        announce(f"{reason}; there are no metrics")
        return None
    announce(f"{reason}; another port is used")
    return server
