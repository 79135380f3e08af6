"""Events that the machine cannot handle are set aside: an error of ours ends no run.

What the machine has changed by then is undone by a replay of what came before. To handle each event
on a copy was the alternative: far too dear at thousands of ranks, for what hardly ever happens.
"""

import logging
from pathlib import Path

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import state_before
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import LinePlace
from remesh.orchestrator.control.words.commands import Command
from remesh.orchestrator.control.words.events import Event

MOST = 20  # events of a life: with more of them nothing works


class CarefulMachine:
    """Handles the events of the journal that `writer` writes in this run's folder."""

    def __init__(self, machine: Controller, writer: JournalWriter, run_folder: Path) -> None:
        self._machine = machine
        self._writer = writer
        self._folder = run_folder
        self._num_aside = 0

    def handle(self, event: Event, now_s: float, place: LinePlace) -> list[Command] | None:
        """What to do about the event at that place of the journal, None if it is set aside."""
        try:
            return self._machine.handle(event, now_s)
        except Exception as error:
            self._num_aside += 1
            if self._num_aside > MOST:
                raise
            logging.getLogger(__name__).exception("an event could not be handled: %s", event)
            self._set_aside(event, error, now_s, place)
            return None

    def _set_aside(self, event: Event, error: Exception, now_s: float, place: LinePlace) -> None:
        what = f"{type(error).__name__}: {error}"
        self._writer.set_aside(place, what, now_s)
        (found,) = read_newest(self._folder).starts[-1:]
        self._machine.state.become(state_before(found, place))
        self._writer.announcement(
            f"an event that cannot be handled, {type(event).__name__}, is set aside ({what}); the "
            f"run goes on without it; please report it with logs/controller.log and the journal",
            now_s,
        )
