"""Which checkpoint is asked to be committed next, and until when its answer is waited for."""

from remesh.orchestrator.control.moves.limits import go_on
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import Commit
from remesh.orchestrator.control.words.phases import ENDED, Phase


def commit_complete(turn: Turn, generation: int) -> None:
    """Asks for the commit of the next save whose files and records are all there."""
    state = turn.state
    if state.phase in ENDED:
        return
    last = state.phase is Phase.DRAINING
    found = state.checkpoints.complete(generation, state.heard_step(generation), last=last)
    if found is not None:
        step, save = found
        files = tuple(sorted(save.files, key=lambda file: file.name))
        save.due_s = turn.now_s + turn.timers.commit_s
        await_commits(turn)
        turn.do(Commit(generation=generation, step=step, files=files))


def commit_once_more(turn: Turn, key: tuple[int, int]) -> bool:
    """Whether that of this (generation, step), which has failed, is asked for again.

    Whatever it failed of may be over, and nothing else is left that could save what it saves.
    """
    checkpoints = turn.state.checkpoints
    failure = checkpoints.saves[key].failure
    if not checkpoints.ask_once_more(key):
        return False
    told = f"the checkpoint at step {key[1]} is not saved so far: {failure}"
    turn.say(f"{told}; its commit is asked for once more")
    commit_complete(turn, key[0])
    go_on(turn)
    return True


def await_commits(turn: Turn) -> None:
    state = turn.state
    if state.phase not in ENDED:
        state.deadlines.commit_s = state.checkpoints.next_due_s()
