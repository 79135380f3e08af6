"""What a run waits for at this moment: how many are there, how many it takes, until when."""

from dataclasses import dataclass
from typing import assert_never

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.moves.next_mesh import lacks
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.phases import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """`need` is a count in words; `until_s` is when it is given up, None for never."""

    text: str
    have: int
    need: str
    until_s: float | None


def wait_of(machine: Controller) -> Awaited | None:
    """None while the run trains, and when it has ended."""
    state = machine.state
    text, have, need = _counted(machine)
    if not text:
        return None
    gathers = state.phase is Phase.WAITING and state.deadlines.gather_s is not None
    until_s = state.deadlines.gather_s if gathers else state.deadlines.phase_s
    return Awaited(text=text, have=have, need=need, until_s=until_s)


def _counted(machine: Controller) -> tuple[str, int, str]:
    """What is waited for, how many there are, how many it takes; no text for nothing."""
    state = machine.state
    if state.phase is Phase.WAITING and state.started:
        lacking = lacks(Turn(options=machine.options, state=state, now_s=0.0))
        return f"waiting for {lacking.what}", lacking.have, lacking.need
    if state.phase is Phase.RUNNING and not state.current.has_steps:
        return "training the first step", 0, "1"
    doing, awaited = _doing(state)
    need = len(state.current.members) if doing else 0
    return doing, need - len(awaited), str(need)


def _doing(state: State) -> tuple[str, set[str]]:
    """What the members of a mesh are at, and which of them are not done yet."""
    match state.phase:
        case Phase.FORMING:
            return "forming a mesh", state.current.unformed
        case Phase.RESTORING:
            return "restoring the state", state.current.unrestored
        case Phase.DRAINING:
            doing = "saving" if state.current.saving else "ending"
            return f"{doing} at a step boundary", state.current.unparked
        case Phase.FENCING:
            return "leaving the old mesh", state.current.unparked
        case Phase.WAITING | Phase.RUNNING:
            return "", set()
        case Phase.FINISHED | Phase.FAILED | Phase.STOPPED | Phase.PREEMPTED:
            return "", set()
        case _:
            assert_never(state.phase)
