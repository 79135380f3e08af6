"""How long each phase may last without a sign of progress.

The limit of a step boundary is none for storage: there each file that comes in is a sign, and only
silence ends the wait. Whoever has to be over by a certain moment writes until shortly before it.
"""

from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import CheckpointState


def limit_s(turn: Turn, phase: Phase) -> float:
    """From the newest sign of progress on."""
    timers, step_s = turn.timers, turn.state.step_s
    if phase is Phase.RESTORING and isinstance(turn.state.current.restore, CheckpointState):
        return timers.read_s
    if phase is Phase.DRAINING and writes(turn):
        return _write_limit_s(turn)
    limits = {
        Phase.WAITING: turn.options.wait_limit_s,
        Phase.FORMING: timers.form_s,
        Phase.RESTORING: timers.restore_s,
        Phase.RUNNING: timers.stall_s(step_s),
        Phase.DRAINING: timers.drain_s(step_s),
        Phase.FENCING: timers.fence_s(step_s),
    }
    trains = phase in (Phase.RUNNING, Phase.DRAINING)
    return max(timers.save_s, limits[phase]) if trains and _has_to_write(turn) else limits[phase]


def _has_to_write(turn: Turn) -> bool:
    """Whether members that train, or come to a boundary, may wait for storage: some have written
    what others write yet, or nobody has yet written what all have come by.
    """
    state, every = turn.state, turn.options.save_every
    saves = state.checkpoints.saves
    if any(of == state.current.generation and save.waiting for (of, _), save in saves.items()):
        return True
    newest = state.step - state.step % every if every else 0
    saved = max(state.current.from_step, state.checkpoints.newest_step or 0)
    return newest > saved and (state.current.generation, newest) not in saves


def writes(turn: Turn) -> bool:
    """Whether the members of a mesh that drains stand at the boundary whose state they save."""
    state, life = turn.state, turn.state.current
    if state.phase is not Phase.DRAINING or not life.saving:
        return False
    return state.step >= turn.options.steps or len(life.unparked) < len(life.members)


def go_on(turn: Turn) -> None:
    """There was a sign of progress: the phase has all its time again."""
    turn.wait(limit_s(turn, turn.state.phase))


def _write_limit_s(turn: Turn) -> float:
    state, timers = turn.state, turn.timers
    commits = state.deadlines.commit_s is not None
    within_s = timers.commit_s if commits else timers.save_s
    notice_s = state.notice_s
    return within_s if notice_s is None else max(within_s, notice_s - turn.now_s)
