"""How a run ends before its last step: with what its ranks hold on storage, as far as can be.

A mesh that trains saves as it drains. Where there is none, one more is formed if there are enough
for it, which saves at its first step boundary; its members write side by side. Where there are too
few, or that mesh breaks as well, or no step is left, the parked workers write what they hold
without any mesh. What only vaults hold takes a mesh to read it: that is waited for. What lost: to
end with what was saved before, which threw away up to `checkpoint.every` steps that live ranks
still held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from remesh.orchestrator.control.memory.checkpoint_book import Save
from remesh.orchestrator.control.memory.membership import Worker, WorkerState
from remesh.orchestrator.control.moves.choosing import states_held, takes_all_along
from remesh.orchestrator.control.moves.limits import limit_s
from remesh.orchestrator.control.moves.next_mesh import enough, form_or_wait, pause
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import SaveHeld
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.recovery import StepHeld, newest_key, newest_whole, parts_of
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.user_text import count
from remesh.parallel.plan.cut import Cut, Part

MOST_NODES = 3  # that cannot write what others then try to


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithinReach:
    """The newest whole state of parked workers, and those that hold some of it; the newest step
    whose state they and the vaults hold together. 0 where there is none.
    """

    live_step: int
    holders: tuple[tuple[str, frozenset[Part]], ...]
    step: int


def save_and_end(turn: Turn) -> None:
    """Nobody trains any more: saves what is newer than what is saved, or ends the run."""
    state, parting = turn.state, turn.state.parting
    assert parting is not None
    found = _within_reach(turn)
    saved_step = state.checkpoints.newest_step or 0
    if parting.may_form and state.vaults.awaited and found.live_step < state.step:
        return
    live = found.live_step > saved_step
    if found.step <= saved_step:
        end_parted(turn, "neither ranks nor vaults hold all of a newer state any more")
    elif parting.may_form and enough(turn) and not (live and _is_last(turn)):
        _form_once_more(turn)
    elif live:
        _save_held(turn, found)
    elif not parting.may_form:
        end_parted(turn, "only vaults hold them, and no further mesh is tried")
    elif state.phase is not Phase.WAITING:
        form_or_wait(turn)


def save_last_step(turn: Turn) -> bool:
    """Whether parked workers hold the state of the last step, and write it now.

    What lost: a mesh more, in which nobody has anything to do but to write and to leave.
    """
    found = _within_reach(turn)
    if found.live_step < turn.options.steps:
        return False
    _save_held(turn, found)
    return True


def save_for_suspects(turn: Turn) -> bool:
    """Whether parked workers write now what would be lost, as the next mesh does without some.

    What lost: to go back to an older checkpoint, or to take those on trial for one mesh more, which
    breaks with them. Storage that took nothing the last time is not waited for again.
    """
    state = turn.state
    if not state.suspicions.on_trial or state.checkpoints.stalled:
        return False
    found = _within_reach(turn)
    idle = states_held(state, state.roster.in_state(WorkerState.IDLE))
    slots = state.vaults.slots(state.lineage, state.heard_step)
    kept = newest_key(parts_of(idle.values()), parts_of((s.step, s.held) for s in slots))
    kept_step = max(state.checkpoints.newest_step or 0, 0 if kept is None else kept[0])
    if found.live_step <= kept_step:
        return False
    state.current.explained = True  # nobody else is suspected if this comes to nothing
    _save_held(turn, found)
    return True


def save_left_behind(turn: Turn, ladder: Ladder) -> bool:
    """Whether parked workers hold what the next mesh of this ladder would leave behind. They write
    it now if there are enough for that mesh, and storage took something the last time.
    """
    state = turn.state
    found = _within_reach(turn)
    if state.parting is not None or found.live_step <= (state.checkpoints.newest_step or 0):
        return False
    if takes_all_along(turn, ladder):
        return False
    fits = ladder.size(state.roster.ready_units, at_least=turn.at_least) > 0
    if fits and not state.checkpoints.stalled:
        _save_held(turn, found)
    return True


def others_save(turn: Turn, save: Save) -> bool:
    """Whether what some could not write is written by others now, who hold it as well.

    The disk of one node may be full. If several nodes cannot write, it is storage.
    """
    state, key = turn.state, saving_of(turn)
    last = state.parting is not None or state.step >= turn.options.steps
    if not last or not save.refused:
        return False
    known = state.roster.workers
    nodes = {known[name].node for name in save.refused | state.checkpoints.silent if name in known}
    state.checkpoints.silent.update(name for name, one in known.items() if one.node in nodes)
    found = _within_reach(turn)
    if found.live_step < key[1] or len(nodes) > MOST_NODES:
        return False
    turn.say(f"the checkpoint at step {key[1]} is not saved so far: {save.failure}")
    _save_held(turn, found)
    return True


def end_parted(turn: Turn, why: str) -> None:
    """Ends the run as it was to end. `why` not all of its steps are saved, if they are not."""
    state, parting = turn.state, turn.state.parting
    assert parting is not None
    text = parting.reason
    if state.step or parting.phase is not Phase.FAILED:
        text += f"; {_saved(turn, why)}"
    turn.end(parting.phase, text, user_error=parting.user_error)


def ask_to_save_held(turn: Turn) -> None:
    """Asks those whose files of a checkpoint by parked workers have not come in."""
    held_save = turn.state.current.held_save
    assert held_save is not None
    generation, step = held_save
    writers = turn.state.checkpoints.saves[held_save].waiting
    if writers:
        turn.do(SaveHeld(generation=generation, step=step, workers=tuple(sorted(writers))))


def saving_of(turn: Turn) -> tuple[int, int]:
    """The (generation, step) of the checkpoint that a drain that saves waits for."""
    life = turn.state.current
    return life.held_save or (life.generation, turn.state.step)


def _form_once_more(turn: Turn) -> None:
    """As often as any mesh may break before its first step, and after the same pauses."""
    state, budget = turn.state, turn.state.budget
    if state.deadlines.pause_s is not None:
        return
    fault, pause_s = state.fault, 0.0
    cause = fault.cause if fault else state.reason
    if state.current.is_last:
        budget.count_empty_try(cause, state.step)
        pause_s = 0.0 if fault and fault.losses else turn.timers.pause_s(budget.empty_tries)
    if budget.failures > turn.options.max_failures:
        end_parted(turn, "the mesh that was to read them from the vaults broke too often")
    elif pause_s and state.phase is not Phase.WAITING:
        pause(turn, pause_s, cause)
    else:
        form_or_wait(turn)


def _is_last(turn: Turn) -> bool:
    """Whether one mesh more has been tried already, or would have nothing to train."""
    return turn.state.current.is_last or turn.state.step >= turn.options.steps


def _within_reach(turn: Turn) -> _WithinReach:
    state = turn.state
    parked = state.roster.in_state(WorkerState.IDLE) + state.roster.in_state(WorkerState.LEAVING)
    parked = [worker for worker in parked if worker.name not in state.checkpoints.silent]
    held = states_held(state, parked)
    slots = state.vaults.slots(state.lineage, state.heard_step)
    live, stored = parts_of(held.values()), parts_of((s.step, s.held) for s in slots)
    together = newest_key(live, stored)
    alone = newest_whole(held.values())
    return _WithinReach(
        live_step=0 if alone is None else alone[0],
        holders=() if alone is None else tuple(_holders(parked, held, alone)),
        step=0 if together is None else together[0],
    )


def _holders(
    parked: Sequence[Worker], held: dict[str, StepHeld], key: tuple[int, Cut]
) -> list[tuple[str, frozenset[Part]]]:
    found = []
    for worker in parked:
        if worker.name in held:
            step, own = held[worker.name]
            if (step, own.cut) == key:
                found.append((worker.name, frozenset(own.parts)))
    return found


def _save_held(turn: Turn, found: _WithinReach) -> None:
    """They write it, unless all its files are there and its commit is under way: that is waited for
    instead. What lost: to write it once more, and to take what came of that commit for its end.
    """
    state = turn.state
    step = found.live_step
    held_save = (state.lineage.keeper(step), step)
    reason = f"the checkpoint at step {step} is written, and about to be committed"
    if not state.checkpoints.is_under_way(held_save):
        writers = _writers(found)
        state.checkpoints.begin_held(held_save, writers)
        reason = f"{count(len(writers), 'parked worker', 'saves', 'save')} step {step}"
    state.current.saving, state.current.held_save = True, held_save
    if state.phase is Phase.DRAINING:
        state.reason = reason
    else:
        turn.move(Phase.DRAINING, reason=reason, within_s=None)
    turn.wait(limit_s(turn, Phase.DRAINING))
    turn.say(reason)
    ask_to_save_held(turn)


def _writers(found: _WithinReach) -> frozenset[str]:
    """One for each part."""
    writers: set[str] = set()
    covered: set[Part] = set()
    for name, parts in found.holders:
        if not parts <= covered:
            covered |= parts
            writers.add(name)
    return frozenset(writers)


def _saved(turn: Turn, why: str) -> str:
    state = turn.state
    saved_step = state.checkpoints.newest_step
    text = "nothing is saved" if saved_step is None else f"saved at step {saved_step}"
    first = (saved_step or 0) + 1
    if state.step < first:
        return text
    steps = f"step {first}" if state.step == first else f"steps {first} to {state.step}"
    return f"{text}{' of' if saved_step is None else ' and nothing of'} {steps}: {why}"
