"""What the controller does about checkpoints: it alone commits, and only complete sets of files."""

from remesh.orchestrator.control.handlers.nodes import do_without_leavers
from remesh.orchestrator.control.handlers.replanning import climb
from remesh.orchestrator.control.moves.limits import go_on, writes
from remesh.orchestrator.control.moves.transitions import (
    awaits_commit,
    note_files,
    settle_if_parked,
)
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
    news = turn.state.checkpoints.add_files(event)
    commit_complete(turn, event.generation)
    if news:
        note_files(turn)


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
        _await_commits(turn)
        turn.do(Commit(generation=generation, step=step, files=files))


def do_without_late_commits(turn: Turn) -> None:
    """Later checkpoints go on without those that do not answer. A late answer still counts."""
    why = f"its commit has not answered for {turn.timers.commit_s:.0f} s"
    checkpoints = turn.state.checkpoints
    for key in checkpoints.note_late(turn.now_s, why):
        again = awaits_commit(turn, key) and checkpoints.ask_once_more(key)
        more = "; it is asked for once more" if again else ""
        turn.say(f"the checkpoint at step {key[1]} is not saved so far: {why}{more}")
        commit_complete(turn, key[0])
    _await_commits(turn)
    if writes(turn):
        go_on(turn)  # what is saved last has waited for this one
    settle_if_parked(turn)


def on_committed(turn: Turn, event: CheckpointCommitted) -> None:
    news = turn.state.checkpoints.committed(CheckpointState(step=event.step, name=event.name))
    _await_commits(turn)
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
    _await_commits(turn)
    _without_checkpoint(turn, event, event.error)
    commit_complete(turn, event.generation)


def _await_commits(turn: Turn) -> None:
    state = turn.state
    if state.phase not in ENDED:
        state.deadlines.commit_s = state.checkpoints.next_due_s()


def _without_checkpoint(turn: Turn, event: SaveFailed | CommitFailed, error: str) -> None:
    """Training goes on without a checkpoint, unless the run was to end with it."""
    if not awaits_commit(turn, (event.generation, event.step)):
        turn.say(f"the checkpoint at step {event.step} is not saved: {error}")
    settle_if_parked(turn)
