"""What to do about a failure that comes again: once, from an older state; never a third time.

A copy of the state may be bad in a way that no checksum knows, and then the run fails some steps
later, in the same way each time. Whoever is killed says nothing, so only what a process raised
itself counts, and a row of steps that are not finite.
"""

from remesh.orchestrator.control.memory.repeats import OwnFailure
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import FreshState, PeerState
from remesh.orchestrator.control.words.recovery import source_label


def look_for_repeats(turn: Turn) -> str:
    """At the end of a mesh, whose members have all told what they know: why the run fails, if it
    does.
    """
    state = turn.state
    repeats = state.repeats
    text, repeats.pending = repeats.pending, ""
    over = _note(turn, OwnFailure(step=state.step + 1, text=text)) if text else ""
    if over:
        return over
    if repeats.goes_back:
        repeats.goes_back = False
        _avoid_this_state(turn)
    return ""


def goes_back(turn: Turn, step: int) -> bool:
    """Whether a row of steps that updated nothing, from `step` on, is tried from an older state.

    It may be owed to the copy of the state that the mesh began with, once.
    """
    state = turn.state
    repeats, life = state.repeats, state.current
    failure = OwnFailure(step=step, text="not finite")
    copied = not isinstance(life.restore, FreshState)
    soon = step - life.from_step <= turn.options.healthy_steps
    if state.phase is not Phase.RUNNING or not copied or not soon or failure == repeats.last:
        return False
    repeats.last, repeats.went_back, repeats.goes_back = failure, True, True
    state.budget.count(f"steps from {step} on updated nothing", state.step)
    return True


def _note(turn: Turn, failure: OwnFailure) -> str:
    repeats = turn.state.repeats
    if failure != repeats.last:
        repeats.last, repeats.went_back = failure, False
    elif repeats.went_back:
        reason = f"step {failure.step} fails in the same way each time, from an older state too"
        return f"{reason}: {failure.text}"
    else:
        repeats.went_back = repeats.goes_back = True
        turn.say(f"step {failure.step} failed twice in the same way: going back to an older state")
    return ""


def _avoid_this_state(turn: Turn) -> None:
    """What the mesh began from, what came of that, and what its members hold now."""
    state = turn.state
    checkpoints, restore = state.checkpoints, state.current.restore
    if not isinstance(restore, FreshState):
        checkpoints.avoid_now(source_label(restore))
    for saved in checkpoints.good:
        if saved.step > state.current.from_step:
            checkpoints.avoid_now(source_label(saved))
    held = {worker.held[1] for worker in state.roster.workers.values() if worker.held is not None}
    for step in sorted({state.step, *held}):
        checkpoints.avoid_now(source_label(PeerState(step=step, source=None)))
