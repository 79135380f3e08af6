"""How one mesh ends: fence or drain, settle, and on to the next one or to the end of the run."""

from dataclasses import replace

from remesh.orchestrator.control.memory.generations import Fault
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.memory.state import Parting
from remesh.orchestrator.control.moves.asking_commits import commit_once_more
from remesh.orchestrator.control.moves.blaming import after_empty_try
from remesh.orchestrator.control.moves.choosing import takes_all_along
from remesh.orchestrator.control.moves.limits import go_on, limit_s
from remesh.orchestrator.control.moves.next_mesh import (
    ask_vaults,
    form_or_wait,
    pause,
    take_up_ladder,
)
from remesh.orchestrator.control.moves.parting import (
    end_parted,
    others_save,
    save_and_end,
    save_for_suspects,
    save_last_step,
    saving_of,
)
from remesh.orchestrator.control.moves.repeating import look_for_repeats
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import Drain, Fence
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.user_text import count


def fence(turn: Turn, sign: str, *, began_s: float | None = None) -> None:
    """Every member leaves the generation now; what it was about to do is abandoned.

    `began_s` is when what is wrong began, where that is known: before anybody could see it.
    """
    note_sign(turn, sign).note_death(began_s)
    leave(turn, sign)


def leave(turn: Turn, cause: str) -> None:
    state = turn.state
    if state.phase is not Phase.FENCING:
        reason = f"leaving generation {state.current.generation}: {cause}"
        turn.move(Phase.FENCING, reason=reason, within_s=limit_s(turn, Phase.FENCING))
        state.current.saving, state.current.held_save = False, None
        turn.say(reason)
        ask_to_leave(turn)
    settle_if_parked(turn)


def ask_to_leave(turn: Turn) -> None:
    """Whoever is asked has all its time, whenever that is."""
    ask_vaults(turn)
    current = turn.state.current
    workers = reachable(turn)
    if workers:
        turn.do(
            Fence(generation=current.generation, workers=workers, heard_step=current.heard_step)
        )


def note_sign(turn: Turn, sign: str) -> Fault:
    state = turn.state
    state.fault = state.fault or Fault(first_sign_s=turn.now_s)
    state.fault.note_sign(sign)
    return state.fault


def still_since_s(turn: Turn, silent_since_s: float | None) -> float | None:
    """When a silence began to hold up the run: not as long as steps were finished all the same."""
    last = turn.state.last
    if silent_since_s is None or last is None:
        return silent_since_s
    return max(silent_since_s, min(last.ended_s, turn.now_s))


def drain(turn: Turn, *, save: bool, reason: str) -> None:
    """Every member leaves the generation at the next step boundary that they agree on."""
    turn.state.current.saving = save
    turn.move(Phase.DRAINING, reason=reason, within_s=None)
    go_on(turn)
    ask_to_drain(turn)


def ask_to_drain(turn: Turn) -> None:
    current = turn.state.current
    turn.do(
        Drain(
            generation=current.generation,
            workers=reachable(turn),
            save=current.saving,
            heard_step=current.heard_step,
        )
    )


def settle_if_parked(turn: Turn) -> None:
    """Goes on once no member trains any more, and what was to be saved is saved."""
    state = turn.state
    if state.phase is Phase.WAITING and state.parting is not None:
        save_and_end(turn)
        return
    if state.phase not in (Phase.FENCING, Phase.DRAINING) or state.current.unparked:
        return
    saved_step = state.checkpoints.newest_step
    if saved_step is not None and saved_step >= turn.options.steps:
        turn.end(
            Phase.FINISHED, f"all {count(turn.options.steps, 'step', 'is', 'are')} done and saved"
        )
    elif state.phase is Phase.FENCING:
        _settle_fenced(turn)
    elif state.current.saving:
        _settle_saving(turn)
    elif state.parting is not None:
        save_and_end(turn)
    else:
        if state.next_ladder and takes_all_along(turn, state.next_ladder.ladder):
            take_up_ladder(turn)
        form_or_wait(turn)


def end_saved(turn: Turn, reason: str, *, user_error: bool = False) -> None:
    """The run has failed: it ends once what its ranks hold is saved, without a further mesh."""
    state = turn.state
    failed = Parting(phase=Phase.FAILED, reason=reason, user_error=user_error)
    state.parting = replace(state.parting or failed, may_form=False)
    if is_saved(turn):
        end_parted(turn, "")
    elif state.phase is Phase.RUNNING and _is_whole(turn):
        drain(turn, save=True, reason=reason)
    elif state.phase in (Phase.WAITING, Phase.FENCING) or _is_whole(turn):
        settle_if_parked(turn)
    else:
        fence(turn, reason)


def is_saved(turn: Turn) -> bool:
    """Whether no step was trained beyond the newest checkpoint."""
    state = turn.state
    return not state.generations or state.step <= (state.checkpoints.newest_step or 0)


def give_up_save(turn: Turn, why: str, *, user_error: bool = False) -> None:
    """What is saved last is not: the run ends, or trains on as it is until storage is well again.

    To try at once again was the alternative: a step, a drain and a wait for storage in turns. Some
    who held the state may be gone by now, so the vaults are asked before the next mesh.
    """
    state = turn.state
    text = f"the checkpoint at step {saving_of(turn)[1]} is not saved: {why}"
    if state.parting is not None and not user_error:
        end_parted(turn, why)
    elif state.parting is not None or state.step >= turn.options.steps:
        turn.end(Phase.FAILED, text, user_error=user_error)
    else:
        state.checkpoints.stalled = True
        state.current.saving = False
        fence(turn, text)


def over_budget(turn: Turn) -> bool:
    """Ends the run if it has failed too often."""
    budget, limit = turn.state.budget, turn.options.max_failures
    if budget.failures <= limit:
        return False
    reason = (
        f"{count(budget.failures, 'failure')}, more than elastic.max_failures={limit}; the last: "
    )
    end_saved(turn, reason + budget.cause)
    return True


def reachable(turn: Turn) -> tuple[str, ...]:
    """The members that may still train and are not being killed."""
    workers = turn.state.roster.workers
    unparked = turn.state.current.unparked
    return tuple(sorted(name for name in unparked if workers[name].state is WorkerState.MEMBER))


def awaits_files(turn: Turn, worker: str) -> bool:
    """Whether the worker has parked and not left its part of what is saved last."""
    state = turn.state
    saving = state.phase is Phase.DRAINING and state.current.saving
    return saving and state.checkpoints.awaits(worker, *saving_of(turn))


def awaits_commit(turn: Turn, key: tuple[int, int]) -> bool:
    """Whether this (generation, step) is what a mesh was left for."""
    state = turn.state
    return state.phase is Phase.DRAINING and state.current.saving and saving_of(turn) == key


def note_files(turn: Turn) -> None:
    """Files came in: whoever waits for storage goes on waiting."""
    if turn.state.phase in (Phase.RUNNING, Phase.DRAINING):
        go_on(turn)


def _is_whole(turn: Turn) -> bool:
    """Whether all are there that train or write."""
    state = turn.state
    workers, save = state.roster.workers, state.checkpoints.saves.get(saving_of(turn))
    names = {member.worker for member in state.current.members}
    if state.phase is Phase.DRAINING and save is not None:
        names = state.current.unparked | save.waiting
    return all(name in workers and workers[name].state is not WorkerState.ENDING for name in names)


def _settle_saving(turn: Turn) -> None:
    """A drain that saves ends the run, lets nodes go that alone held the state, or lets the next
    mesh leave out some who hold it.
    """
    state, key = turn.state, saving_of(turn)
    saved_step = state.checkpoints.newest_step
    if saved_step is not None and saved_step >= key[1]:
        if state.parting is not None:
            end_parted(turn, "")
        else:
            take_up_ladder(turn)
            form_or_wait(turn)
        return
    save = state.checkpoints.saves.get(key)
    if save is None or not save.failure or others_save(turn, save):
        return
    if not commit_once_more(turn, key):
        give_up_save(turn, save.failure, user_error=not save.late)


def _settle_fenced(turn: Turn) -> None:
    state = turn.state
    if state.parting is not None:
        save_and_end(turn)
        return
    fault = state.fault
    assert fault is not None
    if state.vaults.awaited:
        return
    if why_over := look_for_repeats(turn):
        end_saved(turn, why_over)
        return
    pause_s = 0.0
    if not fault.losses and (state.current.stalled or not state.current.has_steps):
        pause_s = after_empty_try(turn, fault.cause)
    if over_budget(turn) or save_last_step(turn) or save_for_suspects(turn):
        return
    if pause_s:
        pause(turn, pause_s, fault.cause)
    else:
        form_or_wait(turn)
