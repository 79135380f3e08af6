"""The simulated cluster around the controller: nodes, processes, watches, storage."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words.events import (
    Event,
    NodeDraining,
    NodeJoined,
    WorkerLost,
    WorkerReady,
)
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.sim_host import HEAD, Host
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.sim.surroundings.ailing import Ailing
from remesh.orchestrator.sim.surroundings.committing import Committing
from remesh.orchestrator.sim.surroundings.outages import Outages
from remesh.orchestrator.sim.surroundings.vault_hosting import VaultHosting
from remesh.orchestrator.sim.surroundings.watches import Watches

START_FAILS = 0.03
LAST_WORDS = 0.5
KERNEL_STAYS = 0.5


@dataclass(slots=True, eq=False)
class Cluster:
    """Carries out commands as the actors would. `tell` hands an event to the controller.

    `knows` says whether the controller counts on a node, `voted` hears of every finished step.
    `restart` makes a new controller after an outage of the one before, `crash` is told that there
    will be none, `claim_again` has somebody else start the run. `claim` is the number of the
    start that the controller acts for.
    """

    world: World
    network: Network
    tell: Callable[[Event], None]
    voted: Callable[[int, int], None]
    knows: Callable[[str], bool]
    restart: Callable[[], None]
    crash: Callable[[], None]
    claim_again: Callable[[], None]
    claim: int = 1
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[str, SimProcess] = field(default_factory=dict)
    meshes: dict[int, SimMesh] = field(default_factory=dict)
    ended: bool = False
    outages: Outages = field(init=False)
    watches: Watches = field(init=False)
    committing: Committing = field(init=False)
    ailing: Ailing = field(init=False)
    vaults: VaultHosting = field(init=False)

    def __post_init__(self) -> None:
        self.world.joined = self._reachable
        self.outages = Outages(
            world=self.world,
            processes=self.processes,
            meshes=self.meshes,
            tell=self.tell,
            restart=self.restart,
        )
        self.committing = Committing(
            world=self.world,
            outages=self.outages,
            meshes=self.meshes,
            tell=self.tell,
            claim=self.claim,
        )
        self.watches = Watches(
            world=self.world,
            network=self.network,
            outages=self.outages,
            tell=self.tell,
            knows=self.knows,
            end_all=self.end_all,
            resume=self._resume,
            offer=self.offer,
        )
        self.vaults = VaultHosting(
            world=self.world,
            processes=self.processes,
            meshes=self.meshes,
            post=self.post,
            to_node=self._to_node,
        )
        self.ailing = Ailing(
            world=self.world,
            hosts=self.hosts,
            processes=self.processes,
            meshes=self.meshes,
            post=self.post,
            kill=self.kill,
            thaw=self._thaw,
        )

    @property
    def num_there(self) -> int:
        """The nodes that are heard and stay."""
        return sum(host.is_heard and not host.draining for host in self.hosts.values())

    def join(self, address: str | None = None) -> None:
        """A further node offers its slots, or one that was there comes back under another name."""
        name = f"node-{len(self.hosts)}"
        settings = self.world.settings
        domain = f"rack-{len(self.hosts) % settings.domains}" if settings.domains else ""
        host = Host(name=name, slots=settings.slots, address=address or name, domain=domain)
        self.hosts[name] = host
        self.world.domains[name] = domain
        self.offer(host)

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
                    self._to_node(node, partial(self.vaults.ask, node, command.generation))
            case cmd.Commit():
                self.committing.put(command)
            case cmd.Announce() | cmd.End():
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

    def end_later(self) -> None:
        """Whatever runs still ends on word of the end, or with its lease."""
        for process in self.processes.values():
            process.soon(self.world.between(0.0, self.world.timers.lease_s), process.die)

    def kill_host(self, host: Host) -> None:
        """A node dies with all its processes; nobody tells but its silence, or its kernel."""
        host.alive = False
        self.end_all(host)
        self.watches.watch(host)
        if self.world.chance.random() < KERNEL_STAYS:
            self.watches.refuse(host)

    def drain(self, host: Host, for_s: float) -> None:
        """A node is to leave, and is gone by then whatever still runs there."""
        host.draining = True
        now_s = self.world.agenda.now_s
        self.tell(NodeDraining(node=host.name, cause="Ray drains it", deadline_s=now_s + for_s))
        self.world.agenda.after(for_s, lambda: self._gone(host))

    def notify_head(self, for_s: float) -> None:
        """The head node is to leave, and everything with it by then."""
        now_s = self.world.agenda.now_s
        self.tell(NodeDraining(node=HEAD, cause="spot notice", deadline_s=now_s + for_s))
        self.world.agenda.after(for_s, self.crash)

    def offer(self, host: Host) -> None:
        event = NodeJoined(
            node=host.name,
            slots=host.slots,
            head=host.name == HEAD,
            host=host.address,
            domain=host.domain,
        )
        self.post(host.name, event)
        self.vaults.start(host)

    def end_all(self, host: Host) -> None:
        """Every process there dies, and the vault."""
        for process in self._on(host):
            process.die()
        if vault := self.world.vaults.get(host.name):
            vault.die()

    def _release(self, command: cmd.ReleaseNode) -> None:
        """Whatever is left there ends, and a node that drains can go."""
        host = self.hosts[command.node]
        self.end_all(host)
        if host.draining:
            self.world.agenda.after(self.world.between(0.0, 1.0), lambda: self._gone(host))

    def _gone(self, host: Host) -> None:
        if host.alive:
            self.kill_host(host)

    def _on(self, host: Host) -> list[SimProcess]:
        return [process for process in self.processes.values() if process.node == host.name]

    def heal_links(self) -> None:
        """All nodes reach each other again: what waited for that goes on."""
        self.network.join()
        for mesh in self.meshes.values():
            mesh.resume()

    def _resume(self, host: Host) -> None:
        """The meshes of the processes there go on."""
        for process in self._on(host):
            if process.mesh is not None:
                process.mesh.resume()

    def _thaw(self, process: SimProcess) -> None:
        if process.alive and process.frozen:
            mesh = process.mesh
            process.thaw()
            if mesh is not None:
                mesh.resume()

    def _to_node(self, node: str, action: Callable[[], None]) -> None:
        self.network.send(node, lambda: action() if self.hosts[node].alive else None)

    def _to_workers(self, command: cmd.Fence | cmd.Drain | cmd.SaveHeld) -> None:
        if isinstance(command, cmd.SaveHeld):
            self.committing.writers[command.generation, command.step] = command.workers
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
        self.vaults.start(self.hosts[command.node])
        process = SimProcess(world=self.world, name=command.worker, node=command.node)
        self.processes[process.name] = process
        host = self.hosts[process.node]
        start_s = self.world.between(1.0, 3.0) * host.start_times
        if self.world.chance.random() < START_FAILS:
            process.soon(start_s / 2, lambda: self.kill(process, "could not import torch"))
        ready = WorkerReady(
            worker=process.name,
            node=process.node,
            pid=len(self.processes),
            device=self._device(host, process.name),
        )
        process.soon(start_s, lambda: self.post(process.node, ready))

    def _device(self, host: Host, name: str) -> int | None:
        """Which device of the node the next process gets, if there are any: one that is free."""
        if not self.world.settings.devices:
            return None
        given = {
            name: device for name, device in host.devices.items() if self.processes[name].alive
        }
        others = sorted(given.values())
        free = (number for number in range(len(others) + 1) if number not in others)
        twice, host.deals_twice = host.deals_twice and bool(others), False
        host.devices[name] = others[0] if twice else next(free)
        return host.devices[name]

    def _end(self, command: cmd.EndWorker) -> None:
        process = self.processes.get(command.worker)
        if process is not None:
            self.ailing.end(process, command.reason)

    def _form(self, form: cmd.Form) -> None:
        mesh = SimMesh(
            world=self.world,
            form=form,
            processes=self.processes,
            reachable=self._reachable,
            voted=self.voted,
        )
        self.meshes[form.generation] = mesh
        mesh.move(self.world.vaults_known())
        for member in form.members:
            self._to_worker(member.worker, form, mesh)
        self.ailing.err(form)

    def _reachable(self, nodes: Collection[str]) -> bool:
        """Whether these nodes reach each other: all of them cut off would be apart as well."""
        if len(nodes) == 1:
            return True
        return not any(self.hosts[node].cut_off for node in nodes) and self.network.joins(nodes)
