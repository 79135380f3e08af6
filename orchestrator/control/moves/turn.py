"""One call of the controller: the moment, the state it may change, the commands decided so far."""

from collections.abc import Callable
from dataclasses import dataclass, field

from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.commands import Announce, Command, End
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import Phase, check_move
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.rung import Rung, Unit


@dataclass(slots=True, kw_only=True)
class Turn:
    """`moves` are the phases that it went through, each with the one before. `tried` is a ladder
    that is only tried: what would be decided on it.
    """

    options: Options
    state: State
    now_s: float
    commands: list[Command] = field(default_factory=list)
    moves: list[tuple[Phase, Phase]] = field(default_factory=list)
    tried: Ladder | None = None

    @property
    def timers(self) -> Timers:
        return self.options.timers

    @property
    def ladder(self) -> Ladder:
        """The meshes that the run may have now."""
        return self.tried or self.state.ladder or self.options.ladder

    @property
    def amendments(self) -> Amendments:
        """What holds from which step on."""
        return amendments_of(self.options, self.state)

    @property
    def at_least(self) -> int:
        """Workers of the smallest mesh that is large enough."""
        return max(1, self.options.min_workers)

    @property
    def bit_key(self) -> str | None:
        """What the bits of the newest mesh depended on, None before the first one of the run."""
        return self.state.bit_key or None

    def pick(self, room: Callable[[Unit], int]) -> Rung | None:
        """The largest mesh that is large enough and has room; another bit key than that of the job,
        then than that of the newest mesh, is the last resort. None if there is none.
        """
        return self.ladder.largest(room, at_least=self.at_least, bit_key=self.bit_key)

    def size(self, room: Callable[[Unit], int]) -> int:
        """Workers of that mesh, 0 if there is none."""
        return self.ladder.size(room, at_least=self.at_least, bit_key=self.bit_key)

    def do(self, command: Command) -> None:
        self.commands.append(command)

    def say(self, text: str) -> None:
        self.commands.append(Announce(text=text))

    def move(self, phase: Phase, *, reason: str, within_s: float | None) -> None:
        """Goes to a phase, which has to be over `within_s` from now."""
        self.moves.append((self.state.phase, phase))
        self.state.phase = check_move(self.state.phase, phase)
        self.state.reason = reason
        self.wait(within_s)

    def wait(self, within_s: float | None) -> None:
        """For so long, unless the run has to be over by an earlier moment."""
        moments = () if within_s is None else (self.now_s + within_s, self.state.notice_s)
        known = (at_s for at_s in moments if at_s is not None)
        self.state.deadlines.wait(min(known, default=None))

    def end(self, phase: Phase, reason: str, *, user_error: bool = False) -> None:
        self.state.user_error = user_error
        self.move(phase, reason=reason, within_s=None)
        self.state.deadlines.clear()
        self.do(End(status=phase.value, reason=reason, user_error=user_error))


def amendments_of(options: Options, state: State) -> Amendments:
    """All of a run: those that it began with, until there are new ones."""
    return options.amendments if state.amendments is None else state.amendments
