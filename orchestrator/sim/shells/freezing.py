"""What a simulated process does later because it is frozen, and never because it is dead."""

from collections.abc import Callable
from typing import Protocol


class Freezable(Protocol):
    """`stalled` is what it has missed while it was frozen."""

    alive: bool
    frozen: bool
    stalled: list[Callable[[], None]]


def act(one: Freezable, action: Callable[[], None]) -> None:
    """Now, later if it is frozen, never if it is dead."""
    if one.alive and one.frozen:
        one.stalled.append(action)
    elif one.alive:
        action()


def thaw(one: Freezable) -> None:
    """It goes on, and catches up on what it has missed."""
    one.frozen = False
    missed, one.stalled = one.stalled, []
    for action in missed:
        act(one, action)
