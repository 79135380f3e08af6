"""Other degrees for a live run, as users ask for them: what cannot be is refused here.

The rule book is asked as it is of a job file, then whether the nodes in use have the room and the
memory. So what a wish can do wrong is said to who wished it, and the run is not touched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from remesh.actors.orders import RunSpec
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.membership import NodeState
from remesh.orchestrator.control.words.events import Event, LadderChanged
from remesh.orchestrator.control.words.phases import ENDED
from remesh.orchestrator.plan.fitting import check_change, check_nodes
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.planner import ladder_of
from remesh.orchestrator.plan.rung import Rung, Unit, changed_bits
from remesh.orchestrator.plan.wish import LayoutWish, wish_of, wished_job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """Bytes: what is free `here`, where all nodes are on this machine, else that of the `nodes`."""

    here: int | None = None
    nodes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """Where the run stands: its mesh if it has one, what was asked for, places on each node."""

    rung: Rung | None
    wish: LayoutWish | None
    places: tuple[int, ...]
    least: int

    def units(self, unit: Unit) -> int:
        if unit.on_one_node:
            return sum(places // unit.workers for places in self.places)
        return sum(self.places) // unit.workers


class LayoutWishes:
    """`memory` looks how much there is. Each answer is a sentence under `text`."""

    def __init__(
        self,
        machine: Controller,
        lock: Lock,
        post: Callable[[Event], None],
        spec: RunSpec,
        memory: Callable[[], FreeMemory],
    ) -> None:
        self._machine = machine
        self._lock = lock
        self._post = post
        self._spec = spec
        self._memory = memory

    def ask(self, wish: Mapping[str, Any]) -> dict[str, str]:
        """Go over to other degrees: `{"layout": "tp=2,pp=2"}`, or "auto". Raises: UserError."""
        job, stands = self._spec.job, self._standing()
        wanted = wish_of(str(wish.get("layout")), job, stands.wish)
        if _degrees(wanted) == _degrees(stands.wish):
            return {"text": f"it is asked for {wanted or 'nothing but what the job says'} already"}
        wished = wished_job(job, wanted)
        ladder = ladder_of(wished)
        rung = _mesh(ladder, wanted, stands)
        memory = self._memory()
        freed = (job, stands.rung) if stands.rung else None
        check_change(wished, rung, freed, memory.here)
        check_nodes(wished, ladder, memory.nodes)
        said = f"somebody asked for {wanted or 'what the job says'}"
        self._post(LadderChanged(ladder=ladder, reason=said, layout=wanted))
        return {"text": _told(stands.rung, rung)}

    def _standing(self) -> _Present:
        most = self._spec.max_members + self._spec.job.elastic.spares  # that a node was asked for
        with self._lock:
            state = self._machine.state
            if state.phase in ENDED or state.parting is not None:
                raise UserError(f"the run is over, or about to be: {state.reason}")
            nodes = state.roster.nodes.values()
            used = [node for node in nodes if node.state is NodeState.USED]
            return _Present(
                rung=state.current.rung if state.generations else None,
                wish=state.asked_layout,
                places=tuple(min(node.slots, most) for node in used),
                least=max(1, self._machine.options.min_workers),
            )


def _degrees(wish: LayoutWish | None) -> dict[str, int]:
    return wish.degrees if wish else {}


def _mesh(ladder: Ladder, wanted: LayoutWish | None, stands: _Present) -> Rung:
    """The largest for which there is room. Raises: UserError if there is none."""
    bit_key = stands.rung.bit_key if stands.rung else None
    replicas = _degrees(wanted).get("dp", 1)
    rung = ladder.largest(stands.units, at_least=stands.least, bit_key=bit_key)
    if rung is not None and rung.layout.dp >= replicas:
        return rung
    need = ladder.needed(stands.least)
    if rung is not None:
        need = str(replicas * rung.workers // rung.layout.dp)
    room = count(sum(stands.places), "worker")
    raise UserError(
        f"{wanted or 'what the job says'} takes more workers than there is room for: have {room} "
        f"on {count(len(stands.places), 'node')}, need {need}; add nodes, or ask for less"
    )


def _told(before: Rung | None, after: Rung) -> str:
    """Such as "going over from dp=4 to dp=2 tp=2 at the next step boundary"."""
    if before is None:
        return f"the first mesh is {after.layout}, if all workers come that there is room for"
    if before.layout == after.layout:
        return f"it has {after.layout} and keeps to it"
    text = f"going over from {before.layout} to {after.layout} at the next step boundary"
    changed = changed_bits(before.bit_key, after.bit_key)
    return f"{text}; the bits change: {changed}" if changed else text
