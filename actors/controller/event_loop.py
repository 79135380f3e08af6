"""One thread that handles events in the order of the journal and has done what is decided."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from remesh.actors.controller.careful import CarefulMachine
from remesh.actors.controller.carrying_out import CarryingOut
from remesh.actors.controller.commits import Commits, LossesByStep, ToldFingerprint
from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.takeover import Beginning
from remesh.actors.history.replay import SnapshotWriter
from remesh.actors.links.pulse import Pulse
from remesh.actors.run.run_view import RunView
from remesh.actors.serving.run_metrics import RunMetrics
from remesh.actors.worker.ordered_faults import ControllerFaults
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.words.commands import (
    Announce,
    AskVaults,
    Command,
    Commit,
    Drain,
    End,
    EndWorker,
    Fence,
    Form,
    ReleaseNode,
    SaveHeld,
    StartWorker,
)
from remesh.orchestrator.control.words.events import Event, Tick

IDLE_S = 1.0
LAST_CARRY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What the loop works with; `now_s` is the journal's clock."""

    inbox: Inbox
    careful: CarefulMachine
    view: RunView
    metrics: RunMetrics
    orders: CarryingOut
    commits: Commits
    fingerprint: ToldFingerprint
    snapshots: SnapshotWriter
    pulse: Pulse
    faults: ControllerFaults
    now_s: Callable[[], float]


class EventLoop:
    """`has_ended` once the run has, or whoever asked for it has `end`ed it."""

    def __init__(self, begun: Beginning, parts: LoopParts) -> None:
        self._begun = begun
        self._spec = begun.spec
        self._machine = begun.machine
        self._parts = parts
        self._losses = LossesByStep()
        self.has_ended = view_of(begun.machine).ended

    def run(self) -> None:
        while not self.has_ended:
            self._handle(*self._next())
            self._parts.snapshots.after_an_event()

    def end(self) -> None:
        self.has_ended = True

    def _next(self) -> tuple[Event, float]:
        """The next event and its moment; a Tick when the machine's deadline comes first."""
        inbox, now_s = self._parts.inbox, self._parts.now_s
        while True:
            deadline_s = self._machine.next_deadline_s()
            wait_s = IDLE_S if deadline_s is None else deadline_s - now_s()
            found = inbox.get(0.0)
            self._parts.orders.settle(idle=found is None)
            found = found or inbox.get(min(max(wait_s, 0.0), IDLE_S))
            if found is not None:
                return found
            late = deadline_s is not None and deadline_s <= now_s()
            if late and not self._parts.pulse.look():  # who stood still itself has not waited
                inbox.put(Tick())

    def _handle(self, event: Event, now_s: float) -> None:
        parts = self._parts
        with parts.view.lock:
            commands = parts.careful.handle(event, now_s, parts.inbox.place)
            if commands is None:
                return
            parts.metrics.note(event, now_s)
            self._losses.note(event)
        for command in commands:
            self._carry_out(command, now_s)
        parts.orders.end_turn(event)
        parts.faults.heard(event)

    def _carry_out(self, command: Command, now_s: float) -> None:
        parts = self._parts
        match command:
            case Commit():
                loss = self._losses.at(command.step)
                spec = replace(self._spec, fingerprint=parts.fingerprint.told)
                parts.commits.ask(spec, command, loss)
            case Announce(text=text):
                self._begun.journal.announcement(text, now_s)
            case End():
                self._end(command, now_s)
            case Form():
                parts.fingerprint.tell(command.amendments)
                parts.commits.begin(self._spec, command)
                parts.orders.carry_out(command)
            case (
                StartWorker()
                | EndWorker()
                | ReleaseNode()
                | Fence()
                | AskVaults()
                | Drain()
                | SaveHeld()
            ):
                parts.orders.carry_out(command)
            case _:
                assert_never(command)

    def _end(self, command: End, now_s: float) -> None:
        if awaited_s := self._parts.metrics.awaited_s():
            text = f"Prometheus is given {awaited_s:.0f} s to read how the run ended"
            self._begun.journal.announcement(text, now_s)
        self._begun.journal.ending(command.sentence, now_s)
        self._begun.close_journal(LAST_CARRY_S)
        self.has_ended = True
