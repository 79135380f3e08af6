"""What the controller does about word from the members of the generation in being."""

from collections.abc import Sequence

from remesh.orchestrator.control.handlers.amending import leave_for_changes
from remesh.orchestrator.control.handlers.nodes import do_without_leavers
from remesh.orchestrator.control.handlers.replanning import climb
from remesh.orchestrator.control.memory.generations import Generation
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.moves.asking_commits import commit_complete
from remesh.orchestrator.control.moves.blaming import after_first_step, note_complaint
from remesh.orchestrator.control.moves.limits import go_on, limit_s
from remesh.orchestrator.control.moves.staffing import form_or_grow
from remesh.orchestrator.control.moves.transitions import drain, fence, settle_if_parked
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import (
    GroupBroken,
    RestoreFailed,
    StepsDone,
    WorkerFormed,
    WorkerParked,
    WorkerRestored,
)
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.control.words.recovery import slot_label, slots_of, source_label


def on_group_broken(turn: Turn, event: GroupBroken) -> None:
    if event.worker in turn.state.current.unparked:
        note_complaint(turn, event)
        fence(turn, f"{event.worker} lost its group: {event.error}")


def on_formed(turn: Turn, event: WorkerFormed) -> None:
    turn.state.current.unformed.discard(event.worker)
    _advance(turn)


def on_restored(turn: Turn, event: WorkerRestored) -> None:
    current = turn.state.current
    if event.worker not in current.unrestored:
        return
    if event.at_step != current.from_step:
        _blame_restore(turn)
        current.explained = True
        fence(turn, f"{event.worker} restored step {event.at_step}, not {current.from_step}")
        return
    current.unformed.discard(event.worker)
    current.unrestored.discard(event.worker)
    if turn.state.phase is Phase.RESTORING:
        go_on(turn)
    _advance(turn)


def on_restore_failed(turn: Turn, event: RestoreFailed) -> None:
    """A slot that cannot be read is done without, whenever that is heard; there may be another of
    the same part.
    """
    restore = turn.state.current.restore
    is_slot = any(slot_label(slot) == event.name for slot in slots_of(restore))
    if is_slot:
        turn.state.vaults.bad.add(event.name)
    if event.worker not in turn.state.current.unrestored:
        return  # doubled, or of one that has left the mesh
    turn.state.current.explained = True
    label = event.name if is_slot else source_label(restore)
    if not is_slot:
        _blame_restore(turn)
    fence(turn, f"{event.worker} could not restore {label}: {event.error}")


def on_steps_done(turn: Turn, event: StepsDone) -> None:
    state = turn.state
    _note_records(turn, event.records)
    if state.current.has_steps and state.current.unrestored:
        state.current.note_restored(turn.now_s)
        _advance(turn)
    if state.phase is Phase.RUNNING:
        go_on(turn)
    _finish_if_done(turn)


def on_parked(turn: Turn, event: WorkerParked) -> None:
    state = turn.state
    current = state.current
    if event.worker not in current.unparked:
        return
    current.drop(event.worker)
    _note_records(turn, event.records)
    worker = state.roster.workers[event.worker]
    if worker.state is WorkerState.MEMBER:
        state.roster.move(worker, WorkerState.LEAVING if worker.leaving else WorkerState.IDLE)
    worker.held = _held(current, event, worker.held)
    if worker.held is not None and worker.held[0] == current.generation:
        worker.held_rank = worker.rank
    if worker.held is not None and worker.held[0] == current.generation:
        state.step = max(state.step, worker.held[1])
    if event.drained:
        _on_drained(turn)
    elif state.phase is Phase.FENCING:
        settle_if_parked(turn)
    else:
        fence(turn, f"{event.worker} left generation {current.generation} by itself")


def _advance(turn: Turn) -> None:
    """FORMING, RESTORING, RUNNING, as far as the reports of the members allow."""
    state = turn.state
    current = state.current
    if state.phase is Phase.FORMING and not current.unformed:
        current.formed_s = current.formed_s or turn.now_s
        within_s = limit_s(turn, Phase.RESTORING)
        turn.move(Phase.RESTORING, reason=current.reason, within_s=within_s)
    if state.phase is Phase.RESTORING and not current.unrestored:
        current.restored_s = current.restored_s or turn.now_s
        within_s = turn.timers.stall_s(state.step_s)
        turn.move(Phase.RUNNING, reason=current.reason, within_s=within_s)
        _on_running(turn)


def _on_running(turn: Turn) -> None:
    state = turn.state
    if len(state.current.unparked) < len(state.current.members):
        _on_drained(turn)
    elif state.parting is not None:
        drain(turn, save=True, reason=f"stopping: {state.parting.reason}")
    else:
        do_without_leavers(turn)
        climb(turn)
        leave_for_changes(turn)
        form_or_grow(turn)


def _on_drained(turn: Turn) -> None:
    """A member stands at a step boundary: at the last step, or because it was asked to."""
    state = turn.state
    _advance(turn)
    _finish_if_done(turn)
    if state.phase is Phase.RUNNING:
        reason = f"generation {state.current.generation} left at a step boundary"
        turn.move(Phase.DRAINING, reason=reason, within_s=turn.timers.drain_s(state.step_s))
    if state.phase is Phase.DRAINING and state.current.saving:
        go_on(turn)
    settle_if_parked(turn)


def _finish_if_done(turn: Turn) -> None:
    """After the last step only the last checkpoint is waited for."""
    state = turn.state
    if state.step < turn.options.steps:
        return
    if state.phase is Phase.RUNNING:
        reason = f"step {state.step} was the last; saving it"
        turn.move(Phase.DRAINING, reason=reason, within_s=turn.timers.save_s)
        state.current.saving = True
    elif state.phase is Phase.DRAINING:
        state.current.saving = True
        go_on(turn)


def _held(
    current: Generation, event: WorkerParked, before: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The (generation, step) of the state that a parked worker holds.

    One that was fenced before it restored still holds what it had: a state of an older generation,
    which may be behind the one that it was to restore, or on an abandoned timeline beyond it.
    """
    if event.at_step is None:
        return None
    known = event.held_in in (current.generation, None if before is None else before[0])
    return (event.held_in, event.at_step) if known else None


def _note_records(turn: Turn, records: Sequence[StepRecord]) -> None:
    state = turn.state
    had_steps = state.current.has_steps
    for record in records:
        if not state.current.note_record(record):
            continue
        if record.step > state.step or state.last is None:
            state.step = max(state.step, record.step)
            state.last = record
        state.budget.progress(record.step, turn.options.healthy_steps)
        if said := state.fruitless.note(record):
            turn.say(said)
    if state.current.has_steps and not had_steps:
        after_first_step(turn)
    commit_complete(turn, state.current.generation)


def _blame_restore(turn: Turn) -> None:
    """One failure a generation, however many members report it."""
    state = turn.state
    if not state.current.blamed:
        state.current.blamed = True
        state.checkpoints.blame(source_label(state.current.restore))
