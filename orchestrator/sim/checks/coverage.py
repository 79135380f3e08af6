"""What of the machine a simulated run has reached: a simulator that does not come there is kind.

Counted are the classes of events that it was told and of commands that it gave, its moves from
phase to phase, and the deadlines that passed: of each phase, and of everything else it waits for.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import get_args

from remesh.orchestrator.control.memory.deadlines import Deadlines, Due
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.commands import Command
from remesh.orchestrator.control.words.events import Event, Tick
from remesh.orchestrator.control.words.phases import ENDED, MOVES, Phase

PHASE_S = "phase_s"


@dataclass(slots=True)
class Coverage:
    """How often each thing was reached, by its name."""

    reached: Counter[str] = field(default_factory=Counter)

    def told(self, state: State, event: Event, now_s: float) -> None:
        """Before the machine handles an event."""
        self.reached[f"event {type(event).__name__}"] += 1
        if isinstance(event, Tick):
            self.reached.update(_due(state, now_s))

    def decided(self, moves: Iterable[tuple[Phase, Phase]], commands: Iterable[Command]) -> None:
        """After it has."""
        self.reached.update(_move(*move) for move in moves)
        self.reached.update(f"command {type(command).__name__}" for command in commands)


def everything() -> frozenset[str]:
    """The names of all that there is to reach."""
    words = [f"event {kind.__name__}" for kind in get_args(Event)]
    words += [f"command {kind.__name__}" for kind in get_args(Command)]
    moves = [_move(before, after) for before, afters in MOVES.items() for after in afters]
    phases = [f"deadline of {phase}" for phase in Phase if phase not in ENDED]
    others = [f"deadline {one.name}" for one in fields(Deadlines) if one.name != PHASE_S]
    return frozenset(words + moves + phases + others)


def _move(before: Phase, after: Phase) -> str:
    return f"move from {before} to {after}"


def _due(state: State, now_s: float) -> Iterable[str]:
    """The deadlines that have passed by now."""
    for one in fields(Deadlines):
        due = getattr(state.deadlines, one.name)
        first_s = due.earliest_s() if isinstance(due, Due) else due
        if first_s is not None and first_s <= now_s:
            phase = state.phase
            yield f"deadline of {phase}" if one.name == PHASE_S else f"deadline {one.name}"
