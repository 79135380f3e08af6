"""Faults on order: what `--kill worker@20 --kill node@40` asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from remesh.orchestrator.user_errors import UserError

KillTarget = Literal["worker", "node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The highest rank, or its whole node, dies by its own signal as `step` begins."""

    target: KillTarget
    step: int


def parse_kill(text: str) -> Kill:
    """The kill in a text such as `worker@20`. Raises: UserError if it is none."""
    target, at, step = text.partition("@")
    if target not in get_args(KillTarget) or not at:
        raise UserError(f"--kill {text}: expected worker@STEP or node@STEP, such as worker@20")
    if not (step.isascii() and step.isdigit()) or int(step[:20]) < 1:
        raise UserError(f"--kill {text}: expected a step from 1 after the @, such as {target}@20")
    return Kill(target=cast("KillTarget", target), step=int(step[:20]))


def check_kills(kills: Sequence[Kill], *, steps: int, nodes: int, address: str | None) -> None:
    """Raises: UserError for a kill that cannot happen, or that must not.

    The head node is never killed, so all but one of the nodes can be; nodes of somebody else's
    cluster (`address`) are not ours to kill.
    """
    for kill in kills:
        if kill.step > steps:
            raise UserError(
                f"--kill {kill.target}@{kill.step}: the job ends at train.steps = {steps}"
            )
    node_kills = [kill for kill in kills if kill.target == "node"]
    if not node_kills:
        return
    name = f"--kill node@{node_kills[-1].step}"
    if address is not None:
        raise UserError(f"{name}: refused with --address: only a node started here may be killed")
    if len(node_kills) >= nodes:
        raise UserError(
            f"{name}: --nodes {nodes} leaves {nodes - 1} to kill, and {len(node_kills)} are named; "
            f"the head node is never killed"
        )
