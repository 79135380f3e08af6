"""A run's controller: clock, inbox and journal around the pure machine of orchestrator.control.

One thread handles events, in the order of the inbox: each is journalled as it arrives, then
handled, and the commands are carried out by calls that do not wait. What must wait (the commit of a
checkpoint) runs in a thread of its own and comes back as an event. Tensors and batches never pass
through here.
"""

import logging
import os
import shutil
import threading
import time
import warnings
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import ray

from remesh.actors.agent.words import NodeAnswer, NodeWord, answer_bytes, beat_of
from remesh.actors.controller.careful import CarefulMachine
from remesh.actors.controller.carrying_out import CarryingOut
from remesh.actors.controller.commits import Commits, ToldFingerprint, overtaken
from remesh.actors.controller.driver_lease import DRIVER_GONE, DriverLease, wait_until_gone
from remesh.actors.controller.event_loop import EventLoop, LoopParts
from remesh.actors.controller.front_door import FrontDoor
from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.listening import GONE, Listening, answer_to, last_of
from remesh.actors.controller.refusing import end_all_of, refused
from remesh.actors.controller.takeover import begin
from remesh.actors.history.replay import SnapshotWriter
from remesh.actors.links.holders import LateStarts
from remesh.actors.links.knocking import Knocking
from remesh.actors.links.links import AgentHearer, Links
from remesh.actors.links.pulse import Pulse
from remesh.actors.links.ray_agents import RayAgents
from remesh.actors.links.watch import Hearers, Watch
from remesh.actors.node.log_carrier import LogCarrier
from remesh.actors.node.offers import Offers
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.orders import NAMESPACE, RunSpec
from remesh.actors.run import old_runs
from remesh.actors.run.claim_watch import ClaimWatch
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.run_view import RunView
from remesh.actors.serving.run_metrics import RunMetrics
from remesh.actors.serving.status_server import StatusServer
from remesh.actors.worker.ordered_faults import ControllerFaults, died_at_s
from remesh.orchestrator.accounts.snapshot import Snapshot
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.handlers.presence import is_held_up
from remesh.orchestrator.control.words.events import (
    CommitFailed,
    Event,
    StoodStill,
    StopRequested,
)
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.job.amendments import with_changes
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.user_errors import RemeshError
from remesh.parallel.doors.letters import LetterBox
from remesh.parallel.threads import heard_thread

CONTROLLER = "controller"  # its log
CUT_SHORT = "ended by the command that started it"
END_LIMIT_S = 5.0


class RunController:
    """Its thread handles events from the beginning until the run has ended.

    Ray starts it again after a death: then it takes over from the one before, and nobody stops.
    """

    def __init__(self, spec: RunSpec, options: Options) -> None:
        self._timers = options.timers
        self._log = _diverted(spec)
        self._folder = RunFolder(Path(spec.folder), spec.job.checkpoint.url)
        self._lease = DriverLease(self._timers.lease_s, spec.driver_lease_s)
        self._refused: RunStatus | None = None
        self._spec = spec
        self._ended = False
        self._is_over = threading.Event()
        self._beats = heard_thread(self._beat, name="beat")
        restarted = _is_restarted()
        if restarted:
            self._beats.start()  # whoever waits for it sees that it lives, however long it reads
        try:
            self._begun = begin(spec, options, self._folder)
        except RemeshError as error:
            self._refuse(error, options)
            return
        self._assemble(options)
        if restarted:
            self._lease.lengthen()
        end_with_own_threads(lambda _name, _error: self._log.finish(self._timers.end_s))
        heard_thread(self._live, name="events", failed=_told).start()

    def _assemble(self, options: Options) -> None:
        """All parts, none of which acts yet."""
        self._spec = spec = self._begun.spec
        self._machine = self._begun.machine
        self._journal = self._begun.journal
        self._inbox = Inbox(self._journal, self._now_s)
        self._view = RunView(self._machine, spec, self._journal, self._begun.tally)
        self._metrics = RunMetrics(self._machine, spec.job.name, self._begun.tally, self._view.lock)
        self._watch = Watch(
            self._timers,
            Offers(spec.job.train.device, self._announce),
            Hearers(
                post=self._inbox.put,
                announce=self._announce,
                died_at_s=self._died_at_s,
                holds_up=self._holds_up,
            ),
        )
        self._knocking = Knocking(self._watch.refused)
        told = AgentHearer(begins=self._watch.begins, over=self._watch.over, newer=self._give_way)
        self._links = Links(RayAgents(spec), spec.incarnation, told)
        host = ray.util.get_node_ip_address()
        self._letters = LetterBox(host, spec.vault_token, self._read)
        orders = CarryingOut(spec, self._machine, self._links, self._watch, host=host)
        self._listening = Listening(
            spec.incarnation, self._machine, self._inbox, self._watch, self._links, self._give_way
        )
        excused = (self._watch.excuse, self._lease.excuse, self._stood_still)
        self._pulse = Pulse(self._timers.silent_s, excused)
        commits = Commits(
            self._folder,
            told=self._inbox.put,
            stands=self._stands_on,
            sync=self._journal.sync,
            prove=self._begun.prove,
            newest=self._begun.newest_saved,
        )
        began_with = with_changes(options.amendments, spec.changes, options.first_step)
        done = Snapshot(state=self._machine.state, tally=self._begun.tally)
        self._loop = EventLoop(
            self._begun,
            LoopParts(
                inbox=self._inbox,
                careful=CarefulMachine(self._machine, self._journal, self._folder.path),
                view=self._view,
                metrics=self._metrics,
                orders=orders,
                commits=commits,
                fingerprint=ToldFingerprint(self._folder, spec.fingerprint, began_with),
                snapshots=SnapshotWriter(done, self._inbox, self._journal),
                pulse=self._pulse,
                faults=ControllerFaults(spec, self._folder.storage),
                now_s=self._now_s,
            ),
        )
        self._claims = ClaimWatch(
            self._folder.claims,
            (spec.incarnation, spec.run),
            followed=self._give_way,
            overtaken=self._is_overtaken,
        )
        self._wall_s = self._begun.now_s - time.monotonic()  # wall-clock seconds that never jump

    def _refuse(self, error: RemeshError, options: Options) -> None:
        """An error here would have Ray start this one again, and tell the driver nothing."""
        self._refused, self._ended = refused(error, options), True
        end_all_of(self._spec)
        self._folder.withdraw(self._spec.run)
        heard_thread(self._outlast_driver, name="driver").start()

    def _live(self) -> None:
        try:
            with self._serve_metrics(), closing(self._serve()):
                self._begin()
                heard_thread(self._watch_driver, name="driver").start()
                if self._beats.ident is None:
                    self._beats.start()
                if self._begun.segments:
                    self._begun.segments.start()
                self._claims.start()
                self._loop.run()
                self._end()
        except Exception as error:
            logging.getLogger(__name__).exception("the controller has failed")
            self._view.fail(error)
            raise
        finally:
            self._end_actors()
            if view_of(self._machine).phase == "finished":
                old_runs.discard(self._folder.places)
            self._folder.withdraw(self._spec.run)
            self._is_over.set()

    def _begin(self) -> None:
        """Watch, and find again what the controller before this one has started, if there was one.

        Agents that are not found have ended meanwhile, and with them what they had started; those
        that are say again what nobody has heard.
        """
        roster = self._machine.state.roster
        there = self._links.adopt() if self._begun.contact else set()
        self._watch.resume(
            offered=roster.nodes,
            gone=self._begun.gone,
            used={worker.node for worker in roster.workers.values()},
            there=there,
        )
        self._links.begin()
        self._knocking.start()
        for event in self._begun.events:
            self._inbox.put(event)
        self._listening.begin()
        self._letters.start()
        self._watch.start(self._pulse.look)
        late = LateStarts(self._watch, self._spec.run, self._announce, self._timers.form_s)
        heard_thread(late.look_again, name="holders").start()

    def hear(self, word: NodeWord) -> NodeAnswer:
        """What an agent says, in the journal when it is answered; its beat in any case."""
        if self._refused is not None:
            return answer_to(GONE, self._spec.incarnation, last_of(word))
        answer = self._listening.hear(word)
        if answer.leased:
            self._knocking.see(word.node, word.agent, word.door)
        return replace(answer, letters=self._letters.address)

    def _read(self, letter: bytes) -> bytes:
        return answer_bytes(self.hear(beat_of(letter)))

    def _give_way(self, incarnation: int) -> NoReturn:
        """Another controller has the run, and all that there is is its own: this one, which stood
        still for long, may not even say goodbye.
        """
        logging.getLogger(__name__).error("controller %d has the run: this one ends", incarnation)
        os._exit(1)

    def _is_overtaken(self, claim: int) -> None:
        """Another start has the run: what there is of this one is of no use any more."""
        error = overtaken(self._folder, claim)
        self._inbox.put(CommitFailed(generation=0, step=0, error=error, fenced=True))

    def post(self, event: Event) -> None:
        if self._refused is None:
            self._inbox.put(event)

    def poll(self, seen: int) -> RunStatus:
        """Where the run stands, with what was announced after the first `seen` announcements.

        It renews the driver's lease as well.
        """
        if self._refused is not None:
            return self._refused
        self._lease.renew()
        return self._view.run_status(seen)

    def stop(self, reason: str) -> None:
        """Ray asks again if this controller dies before it answers: that is the same wish."""
        self.post(StopRequested(reason=reason, wish="command"))

    def end(self) -> None:
        """End every actor of the run now, finished or not. Back when its end has been scraped, and
        what is left of its folder's affairs is done: whoever asks for it ends this process then.
        """
        if self._refused is None:
            self._end()
            self._is_over.wait(END_LIMIT_S)

    def _end(self) -> None:
        self._stop_at_once()
        self._end_actors()
        self._metrics.outlast()

    def _stop_at_once(self) -> None:
        """The journal tells how a run has ended that was not over."""
        if not self._loop.has_ended:
            self.post(StopRequested(reason=CUT_SHORT, wish="end", at_once=True))
        until_s = time.monotonic() + self._timers.silent_s
        while not self._loop.has_ended and time.monotonic() < until_s:
            time.sleep(self._timers.silent_s / 20)

    def _end_actors(self) -> None:
        self._ended = True
        self._loop.end()
        self._claims.end()
        self._watch.end()
        self._links.end(END_LIMIT_S)
        self._log.finish(self._timers.end_s)
        shutil.rmtree(log_folder_of(self._spec.run, CONTROLLER), ignore_errors=True)

    def _stands_on(self, generation: int, step: int) -> bool:
        with self._view.lock:
            return self._machine.state.lineage.holds(generation, step)

    def _holds_up(self, node: str) -> bool:
        with self._view.lock:
            return is_held_up(self._machine.state, node)

    def _serve(self) -> StatusServer:
        door = FrontDoor(self._begun, self._folder, self._view)
        return door.open(self._metrics, self._inbox.put, self._links.stacks)

    def _serve_metrics(self) -> AbstractContextManager[None]:
        node_ip = ray.util.get_node_ip_address()
        return self._metrics.serving(self._begun.metrics, node_ip, self._announce)

    def _announce(self, text: str) -> None:
        self._journal.announcement(text, self._now_s())

    def _stood_still(self, for_s: float) -> None:
        self._inbox.put(StoodStill(for_s=for_s))

    def _watch_driver(self) -> None:
        """Stop the run when its driver's lease has lapsed, and end once it is over."""
        wait_until_gone(self._lease, self._pulse, lambda: self._ended)
        self._inbox.put(StopRequested(reason=DRIVER_GONE, wish="driver"))
        while not self._ended:
            time.sleep(self._timers.silent_s)
        self._is_over.wait(self._timers.lease_s)
        self._metrics.outlast()
        self._go()

    def _outlast_driver(self) -> None:
        while not self._lease.has_lapsed(over=True):
            time.sleep(self._timers.silent_s)
        self._go()

    def _go(self) -> None:
        # Through Ray, which starts a process that just ends once more.
        ray.kill(ray.get_actor(self._spec.controller, NAMESPACE))

    def _beat(self) -> None:
        """Tells whoever cannot reach this controller that it is alive."""
        while not self._ended:
            self._folder.beat()
            time.sleep(self._timers.node_lost_s(1))

    def _died_at_s(self, name: str) -> float | None:
        return died_at_s(self._spec, self._folder.storage, name)

    def _now_s(self) -> float:
        return self._wall_s + time.monotonic()


def _diverted(spec: RunSpec) -> LogCarrier:
    """From now on this process writes to the run's controller.log, after what one before it has."""
    folder = log_folder_of(spec.run, CONTROLLER)
    log = LogCarrier(folder, Path(spec.folder), prunes=True)
    with suppress(FileNotFoundError):  # the first one
        log.carry()
    divert(folder, CONTROLLER)
    log.start()
    return log


def _is_restarted() -> bool:
    """Whether Ray has started this actor again.

    Ray asks for its own answer in a way that it calls outdated, which is nothing to a run's log.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def _told(_: Exception) -> None:
    """The driver hears of it when it polls."""
