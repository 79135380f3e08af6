"""What goes over the line between an agent and the processes that it owns.

A process says events, and an agent passes on orders: to a rank those of its trainer, to a vault the
question what it holds.
"""

from dataclasses import dataclass

from remesh.actors.orders import FormOrder, VaultOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeat:
    """A worker's place on a node, reached by others at `node_ip`.

    `device` is the index of its accelerator, None for none; `incarnation` that of the controller
    which has it started.
    """

    worker: str
    node: str
    node_ip: str
    device: int | None
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultSeat:
    """The place of the vault of a node."""

    node: str
    node_ip: str
    incarnation: int


AnySeat = RankSeat | VaultSeat


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceOrder:
    generation: int
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    generation: int
    save: bool
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """Write what is held of the state at `step` as files of that checkpoint."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """Snapshots go to these vaults from now on."""

    generation: int
    vaults: VaultOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class TellOrder:
    """A vault is to tell what it holds, and to let nobody write to this generation any more."""

    generation: int


RankOrder = FormOrder | FenceOrder | DrainOrder | SaveOrder | MoveOrder
