"""The vaults of simulated nodes: started, asked, killed and started again, and told to the mesh."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from remesh.orchestrator.control.words.events import Event, VaultLost, VaultTold, VaultUp
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.sim_host import Host
from remesh.orchestrator.sim.shells.vault import SimVault
from remesh.orchestrator.sim.shells.world import World

VAULT_RETURNS = 0.7


@dataclass(slots=True, eq=False)
class VaultHosting:
    """`post` has a node tell the controller, `to_node` brings an order to one."""

    world: World
    processes: Mapping[str, SimProcess]
    meshes: Mapping[int, SimMesh]
    post: Callable[[str, Event], None]
    to_node: Callable[[str, Callable[[], None]], None]
    num_vaults: int = 0

    def start(self, host: Host) -> None:
        """Unless there is one."""
        before = self.world.vaults.get(host.name)
        if not self.world.settings.snapshot_every or not host.alive or (before and before.alive):
            return
        self.num_vaults += 1
        address = f"{host.name}:{self.num_vaults}"
        self.world.vaults[host.name] = SimVault(self.world, host.name, address)
        event = VaultUp(node=host.name, address=address)
        self.world.agenda.after(self.world.between(0.1, 0.6), lambda: self.post(host.name, event))

    def kill(self, host: Host) -> None:
        """A vault dies alone. Mostly its node has another one soon, an empty one."""
        vault = self.world.vaults.get(host.name)
        if vault is None or not vault.alive:
            return
        vault.die()
        between, after = self.world.between, self.world.agenda.after
        after(between(0.01, 0.06), lambda: self.post(host.name, VaultLost(node=host.name)))
        if self.world.chance.random() < VAULT_RETURNS:
            after(between(0.2, 3.0), lambda: self.start(host))

    def freeze(self, host: Host, for_s: float) -> None:
        """A vault stands still. The agent of its node kills one that does so for long."""
        vault = self.world.vaults.get(host.name)
        if vault is None or not vault.alive:
            return
        vault.freeze()

        def look() -> None:
            if vault.alive and vault.frozen:
                self.kill(host)

        self.world.agenda.after(for_s, vault.thaw)
        self.world.agenda.after(self.world.timers.silent_s * self.world.between(1.0, 1.5), look)

    def ask(self, node: str, generation: int) -> None:
        vault = self.world.vaults.get(node)
        if vault is not None and vault.alive:
            vault.ask(generation, partial(self._answer, node, generation))

    def move(self) -> None:
        """Tell the newest mesh if the controller counts on other vaults than it was told of."""
        known = self.world.vaults_known()
        for mesh in [*self.meshes.values()][-1:]:
            if known != mesh.vaults:
                mesh.move(known)
                for member in mesh.form.members:
                    self._move(self.processes[member.worker], mesh)

    def _answer(self, node: str, generation: int, slots: tuple[VaultSlot, ...]) -> None:
        event = VaultTold(node=node, generation=generation, slots=slots)
        delay_s = self.world.between(0.001, 0.03)
        self.world.agenda.after(delay_s, lambda: self.post(node, event))

    def _move(self, process: SimProcess, mesh: SimMesh) -> None:
        ways = mesh.ways(process.node)

        def move() -> None:
            if process.snapshots is not None and process.generation == mesh.generation:
                process.snapshots.move(ways)

        self.to_node(process.node, lambda: process.act(move))
