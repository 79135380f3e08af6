"""What the controller does about checkpoints: it alone commits, and only complete sets of files."""

from remesh.orchestrator.control.handlers.nodes import do_without_leavers
from remesh.orchestrator.control.handlers.replanning import climb
from remesh.orchestrator.control.moves.asking_commits import await_commits, commit_complete
from remesh.orchestrator.control.moves.limits import go_on, writes
from remesh.orchestrator.control.moves.transitions import (
    awaits_commit,
    awaits_files,
    note_files,
    settle_if_parked,
)
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    CommitFailed,
    FilesSaved,
    SaveFailed,
)
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import CheckpointState


def on_files_saved(turn: Turn, event: FilesSaved) -> None:
    """An older file of who is waited for is a sign as well: it writes one after the other."""
    news = turn.state.checkpoints.add_files(event)
    commit_complete(turn, event.generation)
    if news or awaits_files(turn, event.worker):
        note_files(turn)


def do_without_late_commits(turn: Turn) -> None:
    """Later checkpoints go on without those that do not answer. A late answer still counts."""
    why = f"its commit has not answered for {turn.timers.commit_s:.0f} s"
    checkpoints = turn.state.checkpoints
    for key in checkpoints.note_late(turn.now_s, why):
        if not awaits_commit(turn, key):
            turn.say(f"the checkpoint at step {key[1]} is not saved so far: {why}")
        commit_complete(turn, key[0])
    await_commits(turn)
    if writes(turn):
        go_on(turn)  # what is saved last has waited for this one
    settle_if_parked(turn)


def on_committed(turn: Turn, event: CheckpointCommitted) -> None:
    news = turn.state.checkpoints.committed(CheckpointState(step=event.step, name=event.name))
    await_commits(turn)
    if news:
        turn.say(f"checkpoint at step {event.step} is committed: {event.name}")
        settle_if_parked(turn)
    commit_complete(turn, event.generation)
    if news:
        do_without_leavers(turn)
        climb(turn)


def on_save_failed(turn: Turn, event: SaveFailed) -> None:
    error = f"{event.worker} could not write it: {event.error}"
    turn.state.checkpoints.fail_save(event, error)
    _without_checkpoint(turn, event, error)


def on_commit_failed(turn: Turn, event: CommitFailed) -> None:
    if event.fenced:
        turn.end(Phase.FAILED, event.error)
        return
    turn.state.checkpoints.fail(event.generation, event.step, event.error)
    await_commits(turn)
    _without_checkpoint(turn, event, event.error)
    commit_complete(turn, event.generation)


def _without_checkpoint(turn: Turn, event: SaveFailed | CommitFailed, error: str) -> None:
    """Training goes on without a checkpoint, unless the run was to end with it."""
    if not awaits_commit(turn, (event.generation, event.step)):
        turn.say(f"the checkpoint at step {event.step} is not saved: {error}")
    settle_if_parked(turn)
