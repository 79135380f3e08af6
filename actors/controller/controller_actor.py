"""ControllerActor: a clock, an inbox and a journal around the pure machine of orchestrator.control.

One thread handles events, in the order of the inbox: each is journalled as it arrives, then
handled, and the commands are carried out by calls that do not wait. What must wait (the commit of a
checkpoint) runs in a thread of its own and comes back as an event. Tensors and batches never pass
through here.
"""

import logging
import os
import shutil
import time
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import ray

from remesh.actors.controller.actor_pool import Pool
from remesh.actors.controller.asked_stacks import AskedStacks
from remesh.actors.controller.commits import Commits, LossesByStep, ToldFingerprint
from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.refusing import end_all_of, refused
from remesh.actors.controller.takeover import begin, open_server
from remesh.actors.controller.watch import Watch
from remesh.actors.controller.wishes import Wishes
from remesh.actors.history.replay import SnapshotWriter
from remesh.actors.links.forms import StoreAddress, forms_by_node
from remesh.actors.node.log_carrier import LogCarrier
from remesh.actors.node.offers import Offers
from remesh.actors.node.own_log import divert, log_folder_of
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.actors.orders import NAMESPACE, RunSpec, VaultMap, joined
from remesh.actors.run import old_runs
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.liveness import this_machine, this_network
from remesh.actors.run.run_view import RunView
from remesh.actors.serving.run_metrics import RunMetrics
from remesh.actors.serving.status_server import LOOPBACK, StatusServer
from remesh.actors.worker.ordered_kills import died_at_s
from remesh.orchestrator.accounts.snapshot import Snapshot
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.memory.membership import WorkerState
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
from remesh.orchestrator.control.words.events import (
    Event,
    NodeJoined,
    NodeLost,
    NodeSilent,
    StopRequested,
    Tick,
    VaultLost,
    VaultUp,
    WorkerLost,
)
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.job.amendments import with_changes
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.plan.buddies import buddies
from remesh.orchestrator.user_errors import RemeshError
from remesh.parallel.doors import addresses
from remesh.parallel.groups.store import StoreServer, room_bytes
from remesh.parallel.threads import heard_thread

CONTROLLER = "controller"  # its log
IDLE_S = 1.0
STORES_KEPT = 2  # members may still be at the one before


class ControllerActor:
    """Its thread handles events from the beginning until the run has ended.

    Ray starts it again after a death: then it takes over from the one before, and nobody stops.
    """

    def __init__(self, spec: RunSpec, options: Options) -> None:
        self._timers = options.timers
        self._log = _diverted(spec)
        self._folder = RunFolder(Path(spec.folder), spec.job.checkpoint.url)
        self._leased_s = time.monotonic()
        self._refused: RunStatus | None = None
        try:
            self._begun = begin(spec, options, self._folder)
        except RemeshError as error:
            self._refuse(error, spec, options)
            return
        self._spec = spec = self._begun.spec
        self._machine = self._begun.machine
        self._journal = self._begun.journal
        self._inbox = Inbox(self._journal, self._now_s)
        self._view = RunView(self._machine, spec, self._journal, self._begun.tally)
        self._metrics = RunMetrics(self._machine, spec.job.name, self._begun.tally, self._view.lock)
        self._pool = Pool(spec)
        self._watch = Watch(
            post=self._inbox.put,
            died_at_s=self._died_at_s,
            timers=self._timers,
            announce=self._announce,
            offers=Offers(spec.job.train.device, self._announce),
        )
        self._commits = Commits(
            self._folder,
            told=self._inbox.put,
            stands=self._stands_on,
            sync=self._journal.sync,
            newest=self._begun.newest_saved,
        )
        self._losses = LossesByStep()
        began_with = with_changes(options.amendments, spec.changes, options.first_step)
        self._fingerprint = ToldFingerprint(self._folder, spec.fingerprint, began_with)
        self._stores: list[StoreServer] = []
        self._head_nodes: set[str] = set()
        done = Snapshot(state=self._machine.state, tally=self._begun.tally)
        self._snapshots = SnapshotWriter(done, self._inbox, self._journal)
        self._ended = view_of(self._machine).ended
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        # The short lease holds until the driver has polled once.
        self._lease_s = spec.driver_lease_s if restarted else self._timers.lease_s
        self._wall_s = self._begun.now_s - time.monotonic()  # wall-clock seconds that never jump
        end_with_own_threads(lambda _name, _error: self._log.finish(self._timers.end_s))
        heard_thread(self._live, name="events", failed=_told).start()

    def _refuse(self, error: RemeshError, spec: RunSpec, options: Options) -> None:
        """An error here would have Ray start this one again, and tell the driver nothing."""
        self._refused = refused(error, options)
        self._spec = spec
        end_all_of(spec)
        self._folder.withdraw(spec.run)
        heard_thread(self._outlast_driver, name="driver").start()

    def _live(self) -> None:
        try:
            with self._serve_metrics(), closing(self._serve()):
                self._begin()
                heard_thread(self._watch_driver, name="driver").start()
                heard_thread(self._beat, name="beat").start()
                while not self._ended:
                    self._handle(*self._next())
                    self._snapshots.after_an_event()
                self.end()
        except Exception as error:
            logging.getLogger(__name__).exception("the controller has failed")
            self._view.fail(error)
            raise
        finally:
            self._end_actors()
            if view_of(self._machine).phase == "finished":
                old_runs.discard(self._folder.places)
            self._folder.withdraw(self._spec.run)

    def _begin(self) -> None:
        """Watch, and find again what the controller before this one has started, if there was one.

        Who is not found has died meanwhile; a worker that was starting is asked for once more.
        """
        roster = self._machine.state.roster
        self._head_nodes.update(node.name for node in roster.nodes.values() if node.head)
        self._watch.resume(
            offered=roster.nodes,
            gone=self._begun.gone,
            heard={worker.node for worker in roster.workers.values()},
        )
        self._watch.start()
        for event in self._begun.events:
            self._inbox.put(event)
        for node in roster.nodes:
            self._pool.adopt_agent(node)
            self._adopt_vault(node)
        for worker in list(roster.workers.values()):
            if worker.state is not WorkerState.STARTING:
                self._adopt(worker.name)

    def _adopt(self, worker: str) -> None:
        life = self._pool.adopt_worker(worker)
        if life is not None:
            self._watch.worker(worker, life)
            return
        cause = "its process died while the controller was away"
        self._inbox.put(WorkerLost(worker=worker, cause=cause, died_at_s=self._died_at_s(worker)))

    def _adopt_vault(self, node: str) -> None:
        life = self._pool.adopt_vault(node)
        if life is not None:
            self._watch.vault(node, life)
        elif node in self._machine.state.vaults.addresses:
            self._inbox.put(VaultLost(node=node))

    def post(self, event: Event) -> None:
        if self._refused is None:
            self._inbox.put(event)

    def beat(self, node: str, frozen: tuple[tuple[str, float], ...]) -> int:
        """How many nodes beat; 0 renews no lease."""
        return self._watch.beat(node, frozen) if self._refused is None else 0

    def poll(self, seen: int) -> RunStatus:
        """Where the run stands, with what was announced after the first `seen` announcements.

        It renews the driver's lease as well.
        """
        self._leased_s = time.monotonic()
        if self._refused is not None:
            return self._refused
        self._lease_s = self._spec.driver_lease_s
        return self._view.run_status(seen)

    def stop(self, reason: str) -> None:
        self.post(StopRequested(reason=reason))

    def end(self) -> None:
        """End every actor of the run now, finished or not. Back when its end has been scraped."""
        if self._refused is None:
            self._end_actors()
            self._metrics.outlast()

    def _end_actors(self) -> None:
        self._ended = True
        self._watch.end()
        self._pool.end()
        self._log.finish(self._timers.end_s)
        shutil.rmtree(log_folder_of(self._spec.run, CONTROLLER), ignore_errors=True)

    def _next(self) -> tuple[Event, float]:
        """The next event and its moment; a Tick when the machine's deadline comes first."""
        while True:
            deadline_s = self._machine.next_deadline_s()
            wait_s = IDLE_S if deadline_s is None else deadline_s - self._now_s()
            found = self._inbox.get(min(max(wait_s, 0.0), IDLE_S))
            if found is not None:
                return found
            if deadline_s is not None and deadline_s <= self._now_s():
                self._inbox.put(Tick())

    def _handle(self, event: Event, now_s: float) -> None:
        was_up = False
        if isinstance(event, NodeJoined) and event.head:
            self._head_nodes.add(event.node)
        elif isinstance(event, WorkerLost):
            self._pool.forget_worker(event.worker)
        elif isinstance(event, VaultLost):
            self._pool.forget_vault(event.node)
            was_up = event.node in self._machine.state.vaults.addresses
        with self._view.lock:
            commands = self._machine.handle(event, now_s)
            self._metrics.note(event, now_s)
            self._losses.note(event)
            for command in commands:
                self._carry_out(command, now_s)
        if isinstance(event, VaultUp):
            self._move()
        elif isinstance(event, VaultLost) and was_up:  # one that cannot start is left alone
            self._start_vault(event.node)
        if isinstance(event, NodeLost):
            self._pool.release(event.node)
        if isinstance(event, NodeSilent) and event.node not in self._machine.state.roster.nodes:
            self._watch.lose(event.node, "silent while its generation ended")

    def _carry_out(self, command: Command, now_s: float) -> None:
        match command:
            case StartWorker(worker=worker, node=node):
                self._start_worker(worker, node)
            case EndWorker(worker=worker, node=node):
                self._pool.end_worker(worker, node)
            case ReleaseNode(node=node):
                self._watch.release(node)
                self._pool.release(node)
            case Form():
                self._form(command)
            case Fence() | AskVaults() | Drain() | SaveHeld():
                self._tell(command)
            case Commit():
                loss = self._losses.at(command.step)
                spec = replace(self._spec, fingerprint=self._fingerprint.told)
                self._commits.ask(spec, command, loss)
            case Announce(text=text):
                self._journal.announcement(text, now_s)
            case End():
                if awaited_s := self._metrics.awaited_s():
                    text = f"Prometheus is given {awaited_s:.0f} s to read how the run ended"
                    self._journal.announcement(text, now_s)
                self._journal.ending(command.sentence, now_s)
                self._journal.sync()
                self._ended = True
            case _:
                assert_never(command)

    def _tell(self, command: Fence | AskVaults | Drain | SaveHeld) -> None:
        match command:
            case Fence(workers=workers, generation=generation, heard_step=heard_step):
                self._pool.tell(workers, "fence", generation, heard_step)
            case AskVaults(nodes=nodes, generation=generation):
                self._pool.tell_vaults(nodes, "tell", generation)
            case Drain(workers=workers, generation=generation, save=save):
                self._pool.tell(workers, "drain", generation, save)
            case SaveHeld(workers=workers, generation=generation, step=step):
                self._pool.tell(workers, "save_held", generation, step)
            case _:
                assert_never(command)

    def _start_worker(self, worker: str, node: str) -> None:
        room = self._watch.room(node)
        if room is None:  # it will be lost
            return
        if self._pool.start_agent(node, room.node_id):
            self._watch.agent(node)
        self._start_vault(node)
        life = self._pool.start_worker(worker, node, room)
        if life is not None:
            self._watch.worker(worker, life)

    @property
    def _wants_snapshots(self) -> bool:
        return self._spec.job.checkpoint.snapshot_every != 0

    def _start_vault(self, node: str) -> None:
        """Unless there is one, or there are to be no snapshots."""
        room = self._watch.room(node)
        if room is not None and self._wants_snapshots:
            life = self._pool.start_vault(node, room.node_id)
            if life is not None:
                self._watch.vault(node, life)

    def _form(self, form: Form) -> None:
        """Open a store on a fresh port and send each member its rank."""
        self._fingerprint.tell(form.amendments)
        self._commits.begin(self._spec, form)
        vaults = self._vault_map()
        host = ray.util.get_node_ip_address()
        store = StoreServer.open(host, most_bytes=room_bytes(len(form.members)))
        self._stores.append(store)
        if len(self._stores) > STORES_KEPT:
            self._stores.pop(0).close()
        forms = forms_by_node(
            form,
            StoreAddress(host=host, port=store.port, secret=store.secret),
            timers=self._timers,
            vaults=vaults,
            head_nodes=self._head_nodes,
        )
        for told in forms.values():
            for rank in told.ranks:
                self._pool.tell([rank.worker], "form", joined(told.shared, rank))

    def _vault_map(self) -> VaultMap:
        state = self._machine.state
        addresses, nodes = state.vaults.addresses, state.roster.nodes
        return VaultMap(
            addresses=dict(addresses),
            buddies=buddies(
                {name: nodes[name].domain if name in nodes else "" for name in addresses}
            ),
            token=self._spec.vault_token if self._wants_snapshots else "",
        )

    def _move(self) -> None:
        """Tell the members of the mesh which vaults there are now."""
        state, vaults = self._machine.state, self._vault_map()
        for life in state.generations[-1:]:
            for member in life.members:
                args = (life.generation, vaults.order(member.node))
                self._pool.tell([member.worker], "move", *args)

    def _stands_on(self, generation: int, step: int) -> bool:
        with self._view.lock:
            return self._machine.state.lineage.holds(generation, step)

    def _serve(self) -> StatusServer:
        answers = {"/status": self._view.status, **self._metrics.answers()}
        wishes = Wishes(self._machine, self._view.lock, self._inbox.put)
        stacks = AskedStacks(self._machine, self._view.lock, self._pool.stacks)
        actions = {
            "/scale": wishes.scale,
            "/drain": wishes.drain,
            "/stop": wishes.stop,
            "/stacks": stacks.ask,
        }
        host = LOOPBACK if self._spec.own_cluster else ray.util.get_node_ip_address()
        server, token = open_server(answers, actions, self._begun.contact, host)
        self._metrics.also_at(addresses.joined(server.host, server.port))
        self._folder.publish(
            Contact(
                run=self._spec.run,
                host=server.host,
                port=server.port,
                token=token,
                address=ray.get_runtime_context().gcs_address,
                pid=os.getpid(),
                started_s=self._now_s(),
                submission=self._spec.submission,
                metrics_port=self._metrics.port,
                machine=this_machine(),
                lease_s=self._timers.lease_s,
                network=this_network(),
            )
        )
        return server

    def _serve_metrics(self) -> AbstractContextManager[None]:
        node_ip = ray.util.get_node_ip_address()
        return self._metrics.serving(self._begun.metrics, node_ip, self._announce)

    def _announce(self, text: str) -> None:
        self._journal.announcement(text, self._now_s())

    def _watch_driver(self) -> None:
        """Stop the run when the driver has not polled for one lease, and end once it is over.

        Nobody comes back for a run that is over: then the short lease holds.
        """
        while time.monotonic() - self._leased_s < (
            self._timers.lease_s if self._ended else self._lease_s
        ):
            time.sleep(self._timers.silent_s)
        self._inbox.put(StopRequested(reason="the command that started the run is gone"))
        while not self._ended:
            time.sleep(self._timers.silent_s)
        time.sleep(self._timers.silent_s)
        self._metrics.outlast()
        self._go()

    def _outlast_driver(self) -> None:
        while time.monotonic() - self._leased_s < self._timers.lease_s:
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


def _told(_: Exception) -> None:
    """The driver hears of it when it polls."""
