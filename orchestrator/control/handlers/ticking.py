"""What is due at a moment that the controller had asked for: nobody else does anything about it."""

from collections.abc import Callable
from typing import assert_never

from remesh.orchestrator.control.handlers.nodes import end_quarantines
from remesh.orchestrator.control.handlers.saving import do_without_late_commits
from remesh.orchestrator.control.handlers.stuck import judge_stuck
from remesh.orchestrator.control.memory.deadlines import Deadlines
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.moves.blaming import note_absent
from remesh.orchestrator.control.moves.limits import writes
from remesh.orchestrator.control.moves.next_mesh import enough, form_or_wait, waiting_reason
from remesh.orchestrator.control.moves.parting import end_parted, saving_of
from remesh.orchestrator.control.moves.staffing import (
    form_or_grow,
    give_up,
    give_up_late,
    lose_worker,
)
from remesh.orchestrator.control.moves.transitions import (
    end_saved,
    fence,
    give_up_save,
    settle_if_parked,
)
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import Tick
from remesh.orchestrator.control.words.phases import ENDED, Phase

MAX_NAMES = 8


def on_tick(turn: Turn, _: Tick) -> None:
    for moment, act in _CLOCKS:
        due_s = moment(turn.state.deadlines)
        if due_s is not None and due_s <= turn.now_s and turn.state.phase not in ENDED:
            act(turn)


def _give_up_starting(turn: Turn) -> None:
    give_up_late(turn, turn.state.deadlines.starting.expired(turn.now_s))


def _lose_ending(turn: Turn) -> None:
    state = turn.state
    for name in state.deadlines.ending.expired(turn.now_s):
        lose_worker(turn, state.roster.workers[name], "no answer and no sign of its end", None)
        if state.phase in ENDED:
            return


def _on_phase_over(turn: Turn) -> None:
    """The phase has lasted as long as it may."""
    state = turn.state
    state.deadlines.phase_s = None
    generation = state.last_generation
    if state.parting is not None and state.notice_s is not None and state.notice_s <= turn.now_s:
        end_parted(turn, "the notice was too short")
        return
    match state.phase:
        case Phase.WAITING:
            _on_waited(turn)
        case Phase.FORMING:
            note_absent(turn)
            fence(turn, f"generation {generation} did not form: {_names(state.current.unformed)}")
        case Phase.RESTORING:
            late = _names(state.current.unrestored)
            fence(turn, f"generation {generation} did not restore: {late}")
        case Phase.RUNNING:
            fence(turn, f"generation {generation} made no step")
        case Phase.DRAINING if writes(turn):
            _on_nothing_written(turn)
        case Phase.DRAINING:
            state.checkpoints.stalled = state.current.saving
            fence(turn, f"generation {generation} did not drain")
        case Phase.FENCING:
            _end_unparked(turn)
        case Phase.FINISHED | Phase.FAILED | Phase.STOPPED | Phase.PREEMPTED:
            raise AssertionError(f"a run that has {state.phase} waits for nothing")
        case _:
            assert_never(state.phase)


def _on_pause_over(turn: Turn) -> None:
    """The next mesh is tried with those who are there, as it would have been without a pause."""
    turn.state.deadlines.pause_s = None
    if turn.state.phase is Phase.WAITING and enough(turn):
        form_or_wait(turn)
    else:
        form_or_grow(turn)


def _on_waited(turn: Turn) -> None:
    state = turn.state
    if state.parting is not None and state.vaults.awaited:
        state.vaults.give_up(state.roster.nodes)
        turn.wait(turn.options.wait_limit_s)
        settle_if_parked(turn)
    elif enough(turn):
        form_or_wait(turn)
    elif state.parting is not None:
        end_parted(turn, f"only vaults hold them, and it was {waiting_reason(turn)}")
    else:
        reason = f"{waiting_reason(turn)}, for {turn.options.wait_limit_s:.0f} s"
        end_saved(turn, reason)


def _on_nothing_written(turn: Turn) -> None:
    """Where some have written and others not, it is those that hang, else it is storage."""
    state, key = turn.state, saving_of(turn)
    why = f"no file of it has come in for {turn.timers.save_s:.0f} s"
    last = state.parting is not None or state.step >= turn.options.steps
    if last and (late := state.checkpoints.note_silent(key)):
        fence(turn, f"{_names(set(late))} did not write step {key[1]}, which others did: {why}")
        return
    step = key[1]
    turn.say(f"the checkpoint at step {step} is not saved: {why}")
    give_up_save(turn, why)


def _end_unparked(turn: Turn) -> None:
    """Who does not answer a fence is killed; a vault that does not is done without."""
    state = turn.state
    turn.wait(turn.timers.end_s)
    state.vaults.give_up(state.roster.nodes)
    for name in sorted(state.current.unparked):
        worker = state.roster.workers[name]
        if worker.state is not WorkerState.MEMBER:
            continue
        if not give_up(turn, worker, f"did not leave generation {state.last_generation}"):
            return
    settle_if_parked(turn)


def _names(workers: set[str]) -> str:
    shown = sorted(workers)[:MAX_NAMES]
    return ", ".join(shown) + (" and others" if len(workers) > len(shown) else "")


_CLOCKS: tuple[tuple[Callable[[Deadlines], float | None], Callable[[Turn], None]], ...] = (
    (lambda due: due.cool_s, end_quarantines),
    (lambda due: due.starting.earliest_s(), _give_up_starting),
    (lambda due: due.ending.earliest_s(), _lose_ending),
    (lambda due: due.commit_s, do_without_late_commits),
    (lambda due: due.phase_s, _on_phase_over),
    (lambda due: due.judge_s, judge_stuck),
    (lambda due: due.pause_s, _on_pause_over),
    (lambda due: due.gather_s, form_or_grow),
)
