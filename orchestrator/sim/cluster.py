"""The simulated cluster around the controller: nodes, processes, watches, storage."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    CommitFailed,
    Event,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeSilent,
    VaultLost,
    VaultTold,
    VaultUp,
    WorkerFrozen,
    WorkerLost,
    WorkerReady,
)
from remesh.orchestrator.sim.outages import Outages
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.vault import SimVault
from remesh.orchestrator.sim.shells.world import Saved, World, value_after

HEAD = "node-0"
START_FAILS = 0.03
COMMIT_FAILS = 0.05
LAST_WORDS = 0.5
VAULT_RETURNS = 0.7


@dataclass(slots=True, eq=False)
class Host:
    """A node. `cut_off` hosts live on, unheard; `draining` ones go once they are let go.

    `address` is that of the node whose place it has taken, if it has.
    """

    name: str
    slots: int
    address: str
    alive: bool = True
    cut_off: bool = False
    draining: bool = False


@dataclass(slots=True, eq=False)
class Cluster:
    """Carries out commands as the actors would. `tell` hands an event to the controller.

    `knows` says whether the controller counts on a node, `voted` hears of every finished step.
    `writers` are the parked workers that were asked to write a checkpoint.
    `restart` makes a new controller after an outage of the one before.
    """

    world: World
    network: Network
    tell: Callable[[Event], None]
    voted: Callable[[int, int], None]
    knows: Callable[[str], bool]
    restart: Callable[[], None]
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[str, SimProcess] = field(default_factory=dict)
    meshes: dict[int, SimMesh] = field(default_factory=dict)
    writers: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    num_vaults: int = 0
    ended: bool = False
    stopping: bool = False
    outages: Outages = field(init=False)

    def __post_init__(self) -> None:
        self.outages = Outages(
            world=self.world,
            processes=self.processes,
            meshes=self.meshes,
            tell=self.tell,
            restart=self.restart,
        )

    def join(self, address: str | None = None) -> None:
        """A further node offers its slots, or one that was there comes back under another name."""
        name = f"node-{len(self.hosts)}"
        host = Host(name=name, slots=self.world.settings.slots, address=address or name)
        self.hosts[name] = host
        self._offer(host)

    def post(self, node: str, event: Event) -> None:
        """An event on its way from a node to the controller."""
        host = self.hosts[node]

        def deliver() -> None:
            if host.alive or self.world.chance.random() < LAST_WORDS:
                self.tell(event)

        if host.alive:
            self.network.send(node, deliver)

    def carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartWorker() | cmd.EndWorker() | cmd.ReleaseNode():
                self._to_node(command.node, lambda: self._act(command))
            case cmd.Form():
                self._form(command)
            case cmd.Fence() | cmd.Drain() | cmd.SaveHeld():
                self._to_workers(command)
            case cmd.AskVaults():
                for node in command.nodes:
                    self._to_node(node, partial(self._ask, node, command.generation))
            case cmd.Commit():
                self._commit(command)
            case cmd.End():
                self.ended = True
            case cmd.Announce():
                pass
            case _:
                assert_never(command)

    def kill(self, process: SimProcess, cause: str = "killed by SIGKILL") -> None:
        """A process dies; its node tells, if it can."""
        if not process.alive:
            return
        died_at_s = self.world.agenda.now_s
        process.die()
        event = WorkerLost(worker=process.name, cause=cause, died_at_s=died_at_s)
        delay_s = self.world.between(0.013, 0.06)
        self.world.agenda.after(delay_s, lambda: self.post(process.node, event))

    def kill_host(self, host: Host) -> None:
        """A node dies with all its processes; nobody tells but its silence."""
        host.alive = False
        self._end_all(host)
        self._watch(host)

    def kill_vault(self, host: Host) -> None:
        """A vault dies alone. Mostly its node has another one soon, an empty one."""
        vault = self.world.vaults.get(host.name)
        if vault is None or not vault.alive:
            return
        vault.die()
        between, after = self.world.between, self.world.agenda.after
        after(between(0.01, 0.06), lambda: self.post(host.name, VaultLost(node=host.name)))
        if self.world.chance.random() < VAULT_RETURNS:
            after(between(0.2, 3.0), lambda: self._start_vault(host))

    def drain(self, host: Host, for_s: float) -> None:
        """A node is to leave, and is gone by then whatever still runs there."""
        host.draining = True
        now_s = self.world.agenda.now_s
        self.tell(NodeDraining(node=host.name, cause="Ray drains it", deadline_s=now_s + for_s))
        self.world.agenda.after(for_s, lambda: self._gone(host))

    def cut(self, host: Host, for_s: float) -> None:
        """A node is unreachable for a while. Its processes live on, at most for their lease."""
        host.cut_off = True
        self._cut_vault(host)
        self.network.cut(host.name)
        self._watch(host)
        lease_s = self.world.timers.lease_s
        if for_s > lease_s:
            self.world.agenda.after(lease_s, lambda: self._end_lease(host))
        self.world.agenda.after(for_s, lambda: self._heal(host))

    def freeze(self, process: SimProcess, for_s: float) -> None:
        process.frozen = True
        self.world.agenda.after(for_s, lambda: self._thaw(process))
        silent_s = self.world.timers.silent_s * self.world.between(1.0, 1.5)
        self.world.agenda.after(silent_s, lambda: self._say_frozen(process, silent_s))

    def _offer(self, host: Host) -> None:
        event = NodeJoined(
            node=host.name, slots=host.slots, head=host.name == HEAD, host=host.address
        )
        self.post(host.name, event)
        self._start_vault(host)

    def _start_vault(self, host: Host) -> None:
        """Unless there is one."""
        before = self.world.vaults.get(host.name)
        if not self.world.settings.snapshot_every or not host.alive or (before and before.alive):
            return
        self.num_vaults += 1
        address = f"{host.name}:{self.num_vaults}"
        self.world.vaults[host.name] = SimVault(self.world.promised, host.name, address)
        event = VaultUp(node=host.name, address=address)
        self.world.agenda.after(self.world.between(0.1, 0.6), lambda: self.post(host.name, event))

    def _ask(self, node: str, generation: int) -> None:
        vault = self.world.vaults.get(node)
        if vault is not None and vault.alive:
            slots = vault.tell(generation)
            event = VaultTold(node=node, generation=generation, slots=slots)
            delay_s = self.world.between(0.001, 0.03)
            self.world.agenda.after(delay_s, lambda: self.post(node, event))

    def _cut_vault(self, host: Host) -> None:
        if vault := self.world.vaults.get(host.name):
            vault.cut_off = host.cut_off

    def _end_all(self, host: Host) -> None:
        """Every process there dies, and the vault."""
        for process in self._on(host):
            process.die()
        if vault := self.world.vaults.get(host.name):
            vault.die()

    def _release(self, command: cmd.ReleaseNode) -> None:
        """Whatever is left there ends, and a node that drains can go."""
        host = self.hosts[command.node]
        self._end_all(host)
        if host.draining:
            self.world.agenda.after(self.world.between(0.0, 1.0), lambda: self._gone(host))

    def _gone(self, host: Host) -> None:
        if host.alive:
            self.kill_host(host)

    def _on(self, host: Host) -> list[SimProcess]:
        return [process for process in self.processes.values() if process.node == host.name]

    def _watch(self, host: Host) -> None:
        """The controller's watch of beats: silent after one patience, lost after three."""
        timers = self.world.timers
        silent_s = timers.node_silent_s(1) * self.world.between(1.0, 1.3)
        silent = NodeSilent(node=host.name, silent_s=silent_s)
        self._if_still_silent(host, silent_s, silent)
        cause = f"no sign of life for {timers.node_lost_s(1):.1f} s"
        lost = NodeLost(node=host.name, cause=cause)
        self._if_still_silent(host, timers.node_lost_s(1) * self.world.between(1.0, 1.3), lost)

    def _if_still_silent(self, host: Host, delay_s: float, event: Event) -> None:
        def check() -> None:
            if self.outages.away:
                self.world.agenda.after(self.world.timers.adopt_s(1), check)
            elif host.cut_off or not host.alive:
                self.tell(event)

        self.world.agenda.after(delay_s, check)

    def _heal(self, host: Host) -> None:
        if not host.cut_off or not host.alive:
            return
        host.cut_off = False
        self._cut_vault(host)
        self.network.heal(host.name)
        if not self.knows(host.name):
            self._rejoin(host)
        for process in self._on(host):
            if process.mesh is not None:
                process.mesh.resume()

    def _rejoin(self, host: Host) -> None:
        """A node that was given up starts over: none of its old processes may go on."""
        self._end_all(host)
        self._offer(host)

    def _end_lease(self, host: Host) -> None:
        if host.cut_off:
            self._end_all(host)

    def _thaw(self, process: SimProcess) -> None:
        if process.alive and process.frozen:
            mesh = process.mesh
            process.thaw()
            if mesh is not None:
                mesh.resume()

    def _say_frozen(self, process: SimProcess, silent_s: float) -> None:
        if process.alive and process.frozen:
            self.post(process.node, WorkerFrozen(worker=process.name, silent_s=silent_s))

    def _to_node(self, node: str, action: Callable[[], None]) -> None:
        self.network.send(node, lambda: action() if self.hosts[node].alive else None)

    def _to_workers(self, command: cmd.Fence | cmd.Drain | cmd.SaveHeld) -> None:
        if isinstance(command, cmd.SaveHeld):
            self.writers[command.generation, command.step] = command.workers
        for name in command.workers:
            self._to_worker(name, command, None)

    def _to_worker(
        self,
        name: str,
        command: cmd.Form | cmd.Fence | cmd.Drain | cmd.SaveHeld,
        mesh: SimMesh | None,
    ) -> None:
        process = self.processes[name]
        self._to_node(process.node, lambda: process.act(lambda: process.receive(command, mesh)))

    def _act(self, command: cmd.StartWorker | cmd.EndWorker | cmd.ReleaseNode) -> None:
        match command:
            case cmd.StartWorker():
                self._start(command)
            case cmd.EndWorker():
                self._end(command)
            case cmd.ReleaseNode():
                self._release(command)
            case _:
                assert_never(command)

    def _start(self, command: cmd.StartWorker) -> None:
        if command.worker in self.processes:
            return
        self._start_vault(self.hosts[command.node])
        process = SimProcess(world=self.world, name=command.worker, node=command.node)
        self.processes[process.name] = process
        start_s = self.world.between(1.0, 3.0)
        if self.world.chance.random() < START_FAILS:
            process.soon(start_s / 2, lambda: self.kill(process, "could not import torch"))
        ready = WorkerReady(worker=process.name, node=process.node, pid=len(self.processes))
        process.soon(start_s, lambda: self.post(process.node, ready))

    def _end(self, command: cmd.EndWorker) -> None:
        process = self.processes.get(command.worker)
        if process is not None:
            self.kill(process, f"ended: {command.reason}")

    def _form(self, form: cmd.Form) -> None:
        mesh = SimMesh(
            world=self.world,
            form=form,
            processes=self.processes,
            reachable=self._reachable,
            voted=self.voted,
        )
        self.meshes[form.generation] = mesh
        for member in form.members:
            self._to_worker(member.worker, form, mesh)

    def _reachable(self, nodes: set[str]) -> bool:
        """Whether these nodes reach each other: all of them cut off would be apart as well."""
        if len(nodes) == 1:
            return True
        return not any(self.hosts[node].cut_off for node in nodes) and self.network.joins(nodes)

    def _commit(self, commit: cmd.Commit) -> None:
        """The controller's own process puts the manifest."""
        members = self.meshes[commit.generation].form.members
        all_of_them = tuple(member.worker for member in members)
        for worker in self.writers.get((commit.generation, commit.step), all_of_them):
            if (commit.generation, commit.step, worker) not in self.world.written:
                raise InvariantError(f"{commit} lacks the file of {worker}")
        quick_s, life = self.world.between(0.001, 0.02), self.outages.life
        put = partial(self._committed, commit, life)
        self.world.storage.run(self.world.agenda.after, quick_s, put)

    def _committed(self, commit: cmd.Commit, life: int) -> None:
        if self.outages.over(life):
            if self.world.chance.random() < LAST_WORDS:
                self._put_manifest(commit)
            return
        last = commit.step >= self.world.settings.steps or self.stopping
        if not last and self.world.chance.random() < COMMIT_FAILS:
            self.tell(
                CommitFailed(generation=commit.generation, step=commit.step, error="disk is full")
            )
            return
        name = self._put_manifest(commit)
        self.tell(CheckpointCommitted(generation=commit.generation, step=commit.step, name=name))

    def _put_manifest(self, commit: cmd.Commit) -> str:
        name = f"step-{commit.step:08d}.gen-{commit.generation}.start-1"
        value = 0
        for step in range(1, commit.step + 1):
            value = value_after(value, step)
        self.world.committed[name] = Saved(step=commit.step, value=value)
        return name
