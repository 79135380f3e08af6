"""Faults on order: what `--kill worker@20` and `--fault freeze@step=20,rank=1,for=2` ask for.

One table says which kinds there are. Those that the simulator has too have its names, with hyphens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count
from remesh.parallel.plan.schedules.operations import Operation

BEGIN = "begin"  # of a step, before its first operation
WITHIN = tuple(kind.__name__.lower() for kind in get_args(Operation))
MOMENTS = (BEGIN, *WITHIN, "save", "form", "restore")
KILL = "expected worker@STEP or node@STEP, such as worker@20"
OF_A_RANK = frozenset({"step", "generation", "rank", "operation"})
OF_THE_CONTROLLER = frozenset({"step", "generation"})
_MOST = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """`says` what it does, `takes` the keys of where it strikes and for how long or how badly."""

    says: str
    takes: frozenset[str]


KINDS: Mapping[str, FaultKind] = {
    "kill": FaultKind(says="the rank's process dies of SIGKILL", takes=OF_A_RANK),
    "freeze": FaultKind(
        says="the rank's process stops, and goes on after `for` seconds, if that is given",
        takes=OF_A_RANK | {"for"},
    ),
    "hang": FaultKind(
        says="the rank waits for what never comes, or for `for` seconds, while its process lives",
        takes=OF_A_RANK | {"for"},
    ),
    "slow": FaultKind(
        says="`steps` steps (1) take the rank `times` as long (2), or `for` seconds longer",
        takes=OF_A_RANK | {"times", "for", "steps"},
    ),
    "disconnect": FaultKind(
        says="all connections of the rank's process to others are shut", takes=OF_A_RANK
    ),
    "disk-full": FaultKind(
        says="the rank can write no file any more, or none for `for` seconds",
        takes=OF_A_RANK | {"for"},
    ),
    "storage-stands-still": FaultKind(
        says="what the rank writes to storage lasts until `for` seconds (5) from then are over",
        takes=OF_A_RANK | {"for"},
    ),
    "kill-node": FaultKind(
        says="the node of the highest rank that is not on the head dies, with all its processes",
        takes=OF_A_RANK - {"rank"},
    ),
    "kill-controller": FaultKind(
        says="the controller dies as it hears that the step is done", takes=OF_THE_CONTROLLER
    ),
    "standstill": FaultKind(
        says="the controller stops as it hears that the step is done, for `for` seconds (5)",
        takes=OF_THE_CONTROLLER | {"for"},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where a rank is: `step` is the one that it computes, or comes to next."""

    generation: int
    step: int
    rank: int
    is_last_rank: bool
    is_node_victim: bool
    operation: str = BEGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedFault:
    """Strikes once, where all that is given here is so. Without a `rank` it is the highest one.

    `asked` is how it was asked for, in the words of whoever did.
    """

    kind: str
    asked: str
    step: int | None = None
    generation: int | None = None
    rank: int | None = None
    operation: str = BEGIN
    for_s: float | None = None
    times: float = 2.0
    steps: int = 1

    def strikes(self, at: Moment) -> bool:
        """Whether it is this rank's, and now."""
        if not (self.is_of_a_rank and self.operation == at.operation):
            return False
        if self.step not in (None, at.step) or self.generation not in (None, at.generation):
            return False
        if self.kind == "kill-node":
            return at.is_node_victim
        return at.is_last_rank if self.rank is None else self.rank == at.rank

    def strikes_controller(self, generation: int, step: int) -> bool:
        """Whether it is the controller's, which hears of this step."""
        if self.is_of_a_rank or self.generation not in (None, generation):
            return False
        return self.step is None or self.step <= step  # it hears of several at once

    @property
    def is_of_a_rank(self) -> bool:
        return "operation" in KINDS[self.kind].takes


def parse_kill(text: str) -> OrderedFault:
    """What a text such as `worker@20` asks for. Raises: UserError if it is no kill."""
    asked = f"--kill {text}"
    target, at, step = text.partition("@")
    kind = {"worker": "kill", "node": "kill-node"}.get(target)
    if not kind or not at:
        raise UserError(f"{asked}: {KILL}")
    if not (step.isascii() and step.isdigit()) or int(step[:20]) < 1:
        raise UserError(f"{asked}: expected a step from 1 after the @, such as {target}@20")
    return OrderedFault(kind=kind, asked=asked, step=int(step[:20]))


def parse_fault(text: str) -> OrderedFault:
    """What a text such as `freeze@step=20,rank=1,for=2` asks for. Raises: UserError."""
    asked = f"--fault {text}"
    name, _, place = text.partition("@")
    if name not in KINDS:
        raise UserError(f"{asked}: {name or 'nothing'} is no fault; expected {', '.join(KINDS)}")
    told: dict[str, Any] = {}
    for part in place.split(","):
        key, equals, value = part.partition("=")
        takes = KINDS[name].takes
        if key not in takes or not equals or key in told:
            raise UserError(
                f"{asked}: {part or 'nothing'} after the @; expected KEY=VALUE,KEY=VALUE, "
                f"with each of {', '.join(sorted(takes))} at most once"
            )
        told[key] = _value(asked, key, value)
    if "step" not in told and "generation" not in told:
        raise UserError(f"{asked}: expected a step or a generation, such as {name}@step=20")
    if "for" in told:
        told["for_s"] = told.pop("for")
    return OrderedFault(kind=name, asked=asked, **told)


def _value(asked: str, key: str, text: str) -> int | float | str:
    """Raises: UserError."""
    if key == "operation":
        if text not in MOMENTS:
            raise UserError(f"{asked}: operation={text}: expected {', '.join(MOMENTS)}")
        return text
    read: Callable[[str], float] = float if key in ("for", "times") else int
    least = 0 if key == "rank" else 1
    try:
        found = read(text) if text.isascii() and text.strip("0123456789.") == "" else -1
    except ValueError:
        found = -1
    if found <= 0 if read is float else not least <= found <= _MOST:
        what = "a number above 0" if read is float else f"a whole number from {least}"
        raise UserError(f"{asked}: {key}={text}: expected {what}")
    return found


def check_faults(
    faults: Sequence[OrderedFault], *, steps: int, ranks: int, nodes: int, address: str | None
) -> None:
    """Raises: UserError for a fault that cannot happen, or that must not.

    A mesh has `ranks` at the most, which count from 0. The head node is never killed, so all but
    one of the nodes can be; nodes of somebody else's cluster (`address`) are not ours to kill.
    """
    for fault in faults:
        if fault.step is not None and fault.step > steps:
            raise UserError(f"{fault.asked}: the job ends at train.steps = {steps}")
        if fault.rank is not None and fault.rank >= ranks:
            raise UserError(
                f"{fault.asked}: rank={fault.rank}: the run has at most {count(ranks, 'rank')}, "
                f"and the first is 0"
            )
    node_kills = [fault for fault in faults if fault.kind == "kill-node"]
    if not node_kills:
        return
    name = node_kills[-1].asked
    if address is not None:
        raise UserError(f"{name}: refused with --address: only a node started here may be killed")
    if len(node_kills) >= nodes:
        raise UserError(
            f"{name}: --nodes {nodes} leaves {nodes - 1} to kill, and {len(node_kills)} are named; "
            f"the head node is never killed"
        )
