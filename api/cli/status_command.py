"""`remesh status` and `remesh events`: a run as its controller or its journal tells it.

Both can be followed: `status --watch` redraws its page, `events -f` adds lines, until the run has
ended or Ctrl-C.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

import remesh
from remesh.cli.screen.flow import dated
from remesh.cli.screen.shapes import event_sentence, with_dates
from remesh.cli.screen.status_page import StatusPage
from remesh.orchestrator.job.driver_words import is_over
from remesh.orchestrator.user_errors import UserError
from remesh.runs import AskedRun, AttachedRun

WATCH_S = 1.0

RunTold = Mapping[str, Any]
ReadStatus = Callable[[], RunTold]


def show_run(console: Console, run: AskedRun, *, as_json: bool, watch: bool) -> None:
    """Raises: UserError if there is no run, or if a program asks for a page that moves."""
    if as_json and watch:
        raise UserError("--watch draws a page for people; leave out --json, or ask again and again")
    if watch:
        watch_status(console, run.status)
    elif as_json:
        print_json(run.status())
    else:
        console.print(StatusPage(run.status(), time.time()))


def watch_status(
    console: Console, read: ReadStatus, *, wait: Callable[[float], None] = time.sleep
) -> None:
    """Redraws the page until the run has ended; Ctrl-C leaves it as it is."""
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                told = read()
                live.update(StatusPage(told, time.time()), refresh=True)
                if is_over(told):
                    return
                wait(WATCH_S)
        except KeyboardInterrupt:
            return


def list_events(console: Console, target: Path | None, *, as_json: bool, to_its_end: bool) -> None:
    """Raises: UserError if there is no run, or if a program asks for lines without an end."""
    if as_json and to_its_end:
        raise UserError("-f writes lines for people; leave out --json, or ask again and again")
    run = remesh.attach(target)
    if to_its_end:
        follow_events(console, run)
    elif as_json:
        print_json(run.events())
    else:
        show_events(console, run.events())


def follow_events(
    console: Console, run: AttachedRun, *, wait: Callable[[float], None] = time.sleep
) -> None:
    """What has happened and what happens, until the run has ended; Ctrl-C ends the command."""
    seen = 0
    try:
        while True:
            over = is_over(run.status())
            events = run.events()
            show_events(console, events[seen:])
            seen = len(events)
            if over:
                return
            wait(WATCH_S)
    except KeyboardInterrupt:
        return


def show_events(console: Console, events: Iterable[RunTold]) -> None:
    """A line for each event, which a terminal wraps below itself and a pipe gets whole."""
    rows = [event_sentence(event, time.time()) for event in events]
    if console.is_terminal and rows:
        console.print(dated(rows))
        return
    for moment, said in rows:
        console.print(f"{moment}  {said}", markup=False, highlight=False, soft_wrap=True)


def print_json(value: RunTold | Sequence[Any]) -> None:
    """One JSON value on standard output, for a program to read; moments have their date as well."""
    print(json.dumps(with_dates(value), indent=1))  # noqa: T201 - neither wrapped nor coloured
