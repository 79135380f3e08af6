"""How a controller begins: as the first of its start of the run, or after one that has died.

Ray starts a dead controller again with the arguments of the first one. What tells it that there was
one is the journal, which it replays and continues in a file of its own, under a claim of its own:
the one before, should it live on somewhere, commits nothing more.
"""

import math
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from remesh.actors.history.brought_back import journal_brought_back
from remesh.actors.history.journal_files import Journal, journal_path
from remesh.actors.history.journal_reading import History
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import Replayed, replayed
from remesh.actors.history.segments import Segments
from remesh.actors.orders import RunSpec
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.serving.status_server import LOOPBACK, Actions, Answers, StatusServer
from remesh.orchestrator.accounts.snapshot import Snapshot, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.events import Amended, ControllerRestarted, RunStarted
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.job.tables.run_tables import MetricsTable
from remesh.orchestrator.user_errors import RemeshError, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """`events` are how the machine learns of it. `gone` are nodes that may not be used again.

    `contact` is how the controller before this one was reached, if there was one.
    """

    spec: RunSpec
    machine: Controller
    tally: Tally
    journal: JournalWriter
    events: tuple[Amended | RunStarted | ControllerRestarted, ...]
    now_s: float
    segments: Segments | None = None
    contact: Contact | None = None
    gone: frozenset[str] = frozenset()

    def prove(self) -> None:
        """All that the journal tells outlives a power cut, and the machine where there is another
        place for it. Raises: OSError.
        """
        self.journal.sync()
        if self.segments:
            self.segments.carry()

    def close_journal(self, limit_s: float) -> None:
        """The same for the last time; the other place is waited for no longer than that."""
        self.journal.sync()
        if self.segments:
            self.segments.finish(limit_s)

    @property
    def newest_saved(self) -> float:
        """The step of the newest checkpoint that there may be, of this start or one before it.

        Nobody knows what a controller before this one has asked for.
        """
        first = not any(isinstance(event, ControllerRestarted) for event in self.events)
        return self.machine.options.first_step if first else math.inf

    @property
    def metrics(self) -> MetricsTable:
        """What the job asks for, where a free port was asked for at the port that it had."""
        table = self.spec.job.metrics
        known = self.contact.metrics_port if self.contact else None
        return table.model_copy(update={"port": known}) if table.port == 0 and known else table


def begin(spec: RunSpec, options: Options, folder: RunFolder) -> Beginning:
    """Cost: the newest journal is read and replayed from its newest snapshot on.

    Raises: RemeshError if somebody else has taken over the run, UserError if what the controller
    before this one has written is not there any more: then nobody knows what it knew.
    """
    has_other_place = folder.guarded is not folder.storage
    brought = journal_brought_back(folder.guarded, folder.path) if has_other_place else None
    history = read_newest(folder.path)
    _check_own(spec, history, folder)
    starts = history.starts
    before = replayed(starts)
    if starts and starts[-1].incarnation >= spec.incarnation:
        begun = _take_over(spec, starts[-1], before, folder)
    else:
        begun = _start(spec, options, before, folder)
    if brought:
        begun.journal.announcement(brought, begun.now_s)
    segments = Segments(folder.guarded, begun.journal) if has_other_place else None
    return replace(begun, segments=segments)


def _start(spec: RunSpec, options: Options, before: Replayed, folder: RunFolder) -> Beginning:
    options = replace(options, start=before.start + 1)
    writer = JournalWriter(folder.path, spec.incarnation, options)
    machine, now_s = Controller(options), time.time()
    _remember(writer, Replayed(state=machine.state, tally=before.tally), now_s)
    for text in spec.notices:
        writer.announcement(text, now_s)
    return Beginning(
        spec=spec,
        machine=machine,
        tally=before.tally,
        journal=writer,
        events=_first_start(spec),
        now_s=now_s,
    )


def _check_own(spec: RunSpec, history: History, folder: RunFolder) -> None:
    """Raises: UserError if this start of the run has a journal that is damaged or gone."""
    path = str(journal_path(folder.path, spec.incarnation))
    own = [start for start in history.starts if start.incarnation == spec.incarnation]
    damage = [start.damage for start in own if start.damage]
    damage += [stray for stray in history.strays if stray.file == path]
    contact = folder.contact()
    if damage:
        what = str(damage[0])
    elif not own and contact is not None and contact.run == spec.run:
        what = f"{path} is gone or empty"
    else:
        return
    raise UserError(
        f"{what}: the controller that wrote it has died, and the one after it cannot know what "
        f"the run was doing; it ends here, and the same command resumes at the last checkpoint"
    )


def _take_over(spec: RunSpec, journal: Journal, before: Replayed, folder: RunFolder) -> Beginning:
    incarnation = folder.claim_again(spec.run)
    if incarnation is None:
        raise RemeshError(f"another start of this run has taken over {folder.path}; this one ends")
    newest_s = journal.newest_s()
    now_s = max(time.time(), newest_s)  # a clock that was set back does not reach the machine
    writer = JournalWriter(folder.path, incarnation, journal.options, continued=journal)
    for (incarnation, place), error in before.aside.items():
        if incarnation == journal.incarnation:
            writer.set_aside(place, error, now_s)
    _remember(writer, before, now_s)
    for text in before.unsaid:
        writer.announcement(text, now_s)
    restarted = (ControllerRestarted(down_s=now_s - newest_s),)
    return Beginning(
        spec=replace(spec, incarnation=incarnation),
        machine=Controller(journal.options, before.state),
        tally=before.tally,
        journal=writer,
        events=restarted if before.state.started else _first_start(spec),
        now_s=now_s,
        contact=folder.contact(),
        gone=frozenset(journal.nodes()) - before.state.roster.nodes.keys(),
    )


def _remember(writer: JournalWriter, before: Replayed, now_s: float) -> None:
    """Whoever begins after this controller needs no file before this one."""
    writer.snapshot(encode(Snapshot(state=before.state, tally=before.tally)), now_s)


def _first_start(spec: RunSpec) -> tuple[Amended | RunStarted, ...]:
    """The changes come first: a run that has started knows of them."""
    changes = (Amended(changes=spec.changes),) if spec.changes else ()
    return (*changes, RunStarted())


def open_server(
    answers: Answers, actions: Actions, before: Contact | None, host: str = LOOPBACK
) -> tuple[StatusServer, str]:
    """The server and its token: where the controller before was found, for who has its word.

    It is on loopback where the `host` cannot be listened at, as behind a translated address.
    """
    token = before.token if before else secrets.token_hex(16)
    places = [(before.host, before.port)] if before else []
    for where, port in (*places, (host, 0)):
        with suppress(OSError):  # somebody else has the port by now
            return StatusServer(answers, token, actions=actions, host=where, port=port), token
    return StatusServer(answers, token, actions=actions), token
