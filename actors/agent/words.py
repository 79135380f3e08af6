"""What goes between the controller and the agent of a node: one message for all of its ranks.

Orders carry the incarnation of the controller that gives them, so that an agent which has heard a
newer one does not obey an older one that wakes up. Events are numbered by the agent and kept until
the controller says that they are in its journal: a message that comes twice, or whose answer is
lost, changes nothing.
"""

import json
from dataclasses import dataclass, fields

from remesh.actors.orders import RankForm, SharedForm, VaultOrder
from remesh.orchestrator.control.words.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRank:
    """Fork a worker, on a place of the node that is free; WorkerReady or WorkerLost follows."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRank:
    """Kill a worker's process; WorkerLost follows once the kernel says that it is gone."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRanks:
    """The node's ranks of a mesh: what all ranks are told, once, and what each is told."""

    shared: SharedForm
    ranks: tuple[RankForm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRanks:
    workers: tuple[str, ...]
    generation: int
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRanks:
    workers: tuple[str, ...]
    generation: int
    save: bool
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRanks:
    """Parked workers write what they hold of the state at `step` as files of that checkpoint."""

    workers: tuple[str, ...]
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveVaults:
    """The snapshots of the node's ranks go to these vaults from now on."""

    generation: int
    vaults: VaultOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class StartVault:
    """Unless there is one; VaultUp follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskVault:
    """VaultTold follows; nothing of this generation is written to the vault any more."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNode:
    """End every rank and the vault, then the agent: the run leaves the node."""


NodeOrder = (
    StartRank
    | EndRank
    | FormRanks
    | FenceRanks
    | DrainRanks
    | SaveRanks
    | MoveVaults
    | StartVault
    | AskVault
    | EndNode
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrders:
    """To an agent, to be carried out in this order. `incarnation` is the controller's claim.

    `number` counts, from 1, what this controller has sent to this agent.
    """

    incarnation: int
    number: int
    orders: tuple[NodeOrder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWord:
    """From an agent: a beat, with the events that the controller has not acknowledged yet.

    `agent` tells this agent from one before it on the same node (it grows); `first` is the number
    of the first event, counted from 1 by this agent. `incarnation` is the newest that it has heard
    orders of, `heard` the number of the last that it has taken from that one. `empty`: every rank
    and the vault have ended, because it was told to clear the node.
    `stood_still_s`: for so long the agent did not run, so silence of its ranks proves nothing.
    `door` is the address that refuses once the agent's process is not there, empty for none.
    """

    node: str
    agent: int
    first: int
    events: tuple[Event, ...]
    incarnation: int
    heard: int = 0
    empty: bool = False
    stood_still_s: float = 0.0
    door: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """To an agent: `heard` is the number of its newest event that is in the journal.

    `num_nodes` beat at present, from which the interval of the beats follows. Without `leased` the
    lease of the node's processes is not renewed. `clear`: the node was given up; its ranks and its
    vault are to end, and the node is to say that it is empty before it may be used again.
    `letters` is the address at which beats are read that come without a call, empty for none.
    """

    incarnation: int
    heard: int
    num_nodes: int
    leased: bool
    clear: bool = False
    letters: str = ""


def beat_bytes(word: NodeWord) -> bytes:
    """A word that is nothing but a beat, as a letter."""
    assert not word.events, word
    told = {name: getattr(word, name) for name in _BEAT}
    return json.dumps(told).encode()


def beat_of(body: bytes) -> NodeWord:
    """Raises: ValueError if it is none that this Remesh writes."""
    told = json.loads(body)
    if not isinstance(told, dict) or set(told) != set(_BEAT):
        raise ValueError(f"{told!r} is no beat; expected {', '.join(_BEAT)}")
    return NodeWord(events=(), **told)


def answer_bytes(answer: NodeAnswer) -> bytes:
    return json.dumps({name: getattr(answer, name) for name in _ANSWER}).encode()


def answer_of(body: bytes) -> NodeAnswer:
    return NodeAnswer(**json.loads(body))


_BEAT = tuple(one.name for one in fields(NodeWord) if one.name != "events")
_ANSWER = tuple(one.name for one in fields(NodeAnswer))
