"""What was decided about workers and vaults, as orders to the agents of their nodes.

Commands name workers; each order goes with all others of the same turn to the node that they are
on. Where snapshots go is told with a mesh, and again to those nodes whose vaults are others by now:
not at once, since thousands of vaults that come up together are one change.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import assert_never

from remesh.actors.agent.words import (
    AskVault,
    DrainRanks,
    EndRank,
    FenceRanks,
    MoveVaults,
    NodeOrder,
    SaveRanks,
    StartRank,
    StartVault,
)
from remesh.actors.links.forms import StoreAddress, forms_by_node, moved_vaults
from remesh.actors.links.links import Links
from remesh.actors.links.watch import Watch
from remesh.actors.orders import RunSpec, VaultMap, VaultOrder
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import (
    AskVaults,
    Drain,
    EndWorker,
    Fence,
    Form,
    ReleaseNode,
    SaveHeld,
    StartWorker,
)
from remesh.orchestrator.control.words.events import (
    Event,
    NodeLost,
    VaultLost,
    VaultUp,
)
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.buddies import buddies
from remesh.parallel.groups.store import StoreServer, room_bytes

STORES_KEPT = 2  # members may still be at the one before
MOVES_EVERY_S = 0.5
VAULT_TRIES = 3

NodeCommand = StartWorker | EndWorker | ReleaseNode | Form | Fence | AskVaults | Drain | SaveHeld


class CarryingOut:
    """For the thread that handles events; the machine is read between two of them."""

    def __init__(
        self,
        spec: RunSpec,
        machine: Controller,
        links: Links,
        watch: Watch,
        *,
        host: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._machine = machine
        self._links = links
        self._watch = watch
        self._host = host
        self._clock = clock
        self._stores: list[StoreServer] = []
        self._told: dict[str, VaultOrder | None] = {}
        self._vault_deaths: Counter[str] = Counter()
        self._moved = False
        self._moved_s = 0.0

    @property
    def _timers(self) -> Timers:
        return self._machine.options.timers

    def carry_out(self, command: NodeCommand) -> None:
        """It goes out with the end of the turn."""
        match command:
            case StartWorker(worker=worker, node=node):
                self._start(worker, node)
            case EndWorker(worker=worker, node=node):
                self._links.give(node, EndRank(worker=worker))
            case ReleaseNode(node=node):
                self._watch.release(node)
                self._links.release(node)
            case Form():
                self._form(command)
            case AskVaults(nodes=nodes, generation=generation):
                for node in nodes:
                    self._links.give(node, AskVault(generation=generation))
            case Fence() | Drain() | SaveHeld():
                for node, workers in self._by_node(command.workers).items():
                    self._links.give(node, _order(command, workers))
            case _:
                assert_never(command)

    def end_turn(self, event: Event) -> None:
        """After all commands of an event: what follows from it for agents, then all goes out."""
        if isinstance(event, VaultUp | VaultLost | NodeLost):
            self._moved = True
            self._replace_vault(event)
        if isinstance(event, NodeLost) and self._watch.never_came(event.node):
            self._links.kill(event.node)
        self._links.send()

    def settle(self, *, idle: bool) -> None:
        """Tell who has other vaults now, once nobody has anything to say, or every half second."""
        if not self._moved or not (idle or self._clock() - self._moved_s > MOVES_EVERY_S):
            return
        self._moved, self._moved_s = False, self._clock()
        for life in self._machine.state.generations[-1:]:
            nodes = {member.node for member in life.members}
            for node, order in moved_vaults(self._told, self._vault_map(), nodes).items():
                self._told[node] = order
                self._links.give(node, MoveVaults(generation=life.generation, vaults=order))
        self._links.send()

    def _start(self, worker: str, node: str) -> None:
        room = self._watch.room(node)
        if room is None:  # it will be lost
            return
        self._links.start(node, room)
        self._start_vault(node)
        self._links.give(node, StartRank(worker=worker))

    def _replace_vault(self, event: VaultUp | VaultLost | NodeLost) -> None:
        """One that has died, a few times in a row: one that cannot start is left alone."""
        if not isinstance(event, VaultLost):
            self._vault_deaths.pop(event.node, None)
            return
        self._vault_deaths[event.node] += 1
        if self._vault_deaths[event.node] <= VAULT_TRIES:
            self._start_vault(event.node)

    def _start_vault(self, node: str) -> None:
        if self._wants_snapshots:
            self._links.give(node, StartVault())

    @property
    def _wants_snapshots(self) -> bool:
        return self._spec.job.checkpoint.snapshot_every != 0

    def _form(self, form: Form) -> None:
        """Open a store on a fresh port and send each node its ranks."""
        store = StoreServer.open(self._host, most_bytes=room_bytes(len(form.members)))
        self._stores.append(store)
        if len(self._stores) > STORES_KEPT:
            self._stores.pop(0).close()
        nodes = self._machine.state.roster.nodes
        forms = forms_by_node(
            form,
            StoreAddress(host=self._host, port=store.port, secret=store.secret),
            timers=self._timers,
            vaults=self._vault_map(),
            head_nodes={name for name, node in nodes.items() if node.head},
        )
        self._told = {node: order.ranks[0].vaults for node, order in forms.items()}
        for node, order in forms.items():
            self._links.give(node, order)

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

    def _by_node(self, workers: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Those that are still there."""
        known = self._machine.state.roster.workers
        found: dict[str, list[str]] = defaultdict(list)
        for name in workers:
            if name in known:
                found[known[name].node].append(name)
        return {node: tuple(names) for node, names in found.items()}


def _order(command: Fence | Drain | SaveHeld, workers: tuple[str, ...]) -> NodeOrder:
    match command:
        case Fence(generation=generation, heard_step=heard_step):
            return FenceRanks(workers=workers, generation=generation, heard_step=heard_step)
        case Drain(generation=generation, save=save, heard_step=heard_step):
            return DrainRanks(
                workers=workers, generation=generation, save=save, heard_step=heard_step
            )
        case SaveHeld(generation=generation, step=step):
            return SaveRanks(workers=workers, generation=generation, step=step)
        case _:
            assert_never(command)
