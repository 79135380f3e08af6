"""What the controller does about checkpoints: it alone commits, and only complete sets of files."""

from remesh.orchestrator.control.moves.transitions import settle_if_parked
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import Commit
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    CommitFailed,
    FilesSaved,
    SaveFailed,
)
from remesh.orchestrator.control.words.phases import ENDED, Phase
from remesh.orchestrator.control.words.records import CheckpointState


def on_files_saved(turn: Turn, event: FilesSaved) -> None:
    turn.state.checkpoints.add_files(event)
    commit_complete(turn, event.generation)


def commit_complete(turn: Turn, generation: int) -> None:
    """Asks for the commit of the next save whose files and records are all there."""
    state = turn.state
    if state.phase in ENDED:
        return
    found = state.checkpoints.complete(generation, state.heard_step(generation))
    if found is not None:
        step, save = found
        files = tuple(sorted(save.files, key=lambda file: file.name))
        turn.do(Commit(generation=generation, step=step, files=files))


def on_committed(turn: Turn, event: CheckpointCommitted) -> None:
    if turn.state.checkpoints.committed(CheckpointState(step=event.step, name=event.name)):
        turn.say(f"checkpoint at step {event.step} is committed: {event.name}")
        settle_if_parked(turn)
    commit_complete(turn, event.generation)


def on_save_failed(turn: Turn, event: SaveFailed) -> None:
    _without_checkpoint(turn, event, f"{event.worker} could not write it: {event.error}")


def on_commit_failed(turn: Turn, event: CommitFailed) -> None:
    if event.fenced:
        turn.end(Phase.FAILED, event.error)
    else:
        turn.state.checkpoints.fail(event.generation, event.step)
        _without_checkpoint(turn, event, event.error)
        commit_complete(turn, event.generation)


def _without_checkpoint(turn: Turn, event: SaveFailed | CommitFailed, error: str) -> None:
    """Training goes on without a checkpoint, unless the run was to end with it."""
    state = turn.state
    text = f"the checkpoint at step {event.step} is not saved: {error}"
    last = event.step >= turn.options.steps
    stopping = bool(state.stop_reason) and state.current.saving and state.live(event.generation)
    if last or stopping:
        turn.end(Phase.FAILED, text, user_error=True)
    else:
        turn.say(text)
