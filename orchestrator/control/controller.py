"""The machine that decides: events in, commands out, one mutator, no clock and no I/O.

What to do about an event stands beside its subject in `handlers/`; `handlers/table` says which
function it is and whose word counts.
"""

from remesh.orchestrator.control.handlers.nodes import settle_nodes
from remesh.orchestrator.control.handlers.stopping import end_if_nothing_is_learned
from remesh.orchestrator.control.handlers.table import dispatch
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.moves.staffing import refill
from remesh.orchestrator.control.moves.turn import Turn, amendments_of
from remesh.orchestrator.control.words.commands import Command
from remesh.orchestrator.control.words.events import Event, RunStarted
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import ENDED, Phase
from remesh.orchestrator.job.amendments import Amendments


class Controller:
    """Holds the state of one run. Events may be handled before `start`, which lets it act.

    `moves` are those of the newest event, from phase to phase, for those who watch it.
    """

    def __init__(self, options: Options, state: State | None = None) -> None:
        self.options = options
        self.state = State() if state is None else state
        self.moves: list[tuple[Phase, Phase]] = []

    def start(self, now_s: float) -> list[Command]:
        """The same as handling RunStarted, which the journal has to hold."""
        return self.handle(RunStarted(), now_s)

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """What to do about `event`, in this order. `now_s` never goes backwards."""
        turn = Turn(options=self.options, state=self.state, now_s=now_s)
        if self.state.phase not in ENDED:
            dispatch(turn, event)
            end_if_nothing_is_learned(turn)
            settle_nodes(turn)
            refill(turn)
        self.moves = turn.moves
        return turn.commands

    @property
    def amendments(self) -> Amendments:
        """What holds from which step on."""
        return amendments_of(self.options, self.state)

    def next_deadline_s(self) -> float | None:
        """The moment at which the controller wants a Tick, None for never."""
        return self.state.deadlines.earliest_s()
