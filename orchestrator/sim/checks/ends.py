"""How a start of a simulated run may end: with what live ranks hold saved, or with a reason."""

from dataclasses import dataclass

from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.events import (
    CommitFailed,
    Event,
    NodeDraining,
    RestoreFailed,
    SaveFailed,
    StopRequested,
)
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.sim.checks.health import Health
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.parts import is_whole
from remesh.orchestrator.sim.shells.sim_host import HEAD
from remesh.orchestrator.sim.shells.slow_storage import SlowStorage
from remesh.parallel.plan.cut import Held

CRAWLING = 100.0
NO_ANSWER = "has not answered"  # of a commit
FULL = "disk is full"  # likewise; refused for anything else, it is asked for again
MARGIN_S = 4.0  # before the moment by which a run has to be over


@dataclass(slots=True)
class Ends:
    """`excuse` says why something may be lost at the end of this start, as far as it was told."""

    health: Health
    storage: SlowStorage
    excuse: str = ""
    until_s: float | None = None

    def note(self, event: Event) -> None:
        match event:
            case StopRequested(at_once=True):
                self.excuse = "it was to end at once"
            case StopRequested(deadline_s=float() as at_s):
                self.until_s = at_s
            case NodeDraining(deadline_s=float() as at_s) if event.node == HEAD:
                self.until_s = at_s
            case SaveFailed() | RestoreFailed():
                self.excuse = str(event)
            case CommitFailed(error=error) if error == FULL:
                self.excuse = error
            case _:
                pass

    def check(self, state: State, now_s: float) -> None:
        """A run that was asked to end, or waits in vain, leaves nothing that live ranks hold.

        As far as it was told of the steps: those of the last moment may be news to it.
        """
        waited = state.phase is Phase.FAILED and state.reason.startswith("waiting for")
        if state.phase not in (Phase.STOPPED, Phase.PREEMPTED) and not waited:
            return
        late = self.until_s is not None and now_s > self.until_s - MARGIN_S
        mute = NO_ANSWER in state.reason
        if late or mute or self.excuse or self._crawls:
            return
        saved, held = state.checkpoints.newest_step or 0, min(self._held(state), state.step)
        if held > saved:
            raise InvariantError(f"{state.reason}: step {held} is held by live ranks")

    @property
    def _crawls(self) -> bool:
        """Storage that is slow and stands still as well gives no sign for longer than is waited."""
        return self.storage.times >= CRAWLING and self.storage.still_until_s > 0

    def _held(self, state: State) -> int:
        """The newest step whose state healthy ranks hold together.

        Without those whose end is on its way: what one of them says crosses it and saves nothing.
        Whether it was to be ended is for the check of that command.
        """
        found: dict[int, list[Held]] = {}
        for name, process in self.health.processes.items():
            ill = self.health.why_ill(name) not in ("", "late")
            worker = state.roster.workers.get(name)
            stays = worker is not None and worker.state is not WorkerState.ENDING
            if ill or not stays or process.at_step is None:
                continue
            if state.lineage.holds(process.seat.held_in, process.at_step):
                found.setdefault(process.at_step, []).append(process.held)
        return max((step for step, parts in found.items() if is_whole(parts)), default=0)
