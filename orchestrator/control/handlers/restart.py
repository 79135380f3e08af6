"""What a controller does at its start: the first one begins the run, one that is back goes on.

The state of the latter is that of the controller that died, replayed from the journal, and no word
was lost: one that was not in the journal is sent again. Only commands may be lost, those of the
last moment. Commands are idempotent: clocks start anew, and all that the state still waits for is
asked for once more. What lost: asking every worker where it stands, a second way to the same
knowledge.
"""

from typing import assert_never

from remesh.orchestrator.control.handlers.nodes import keep_out_again
from remesh.orchestrator.control.memory.carrying import take_up
from remesh.orchestrator.control.memory.membership import NodeState, WorkerState
from remesh.orchestrator.control.moves.asking_commits import commit_complete
from remesh.orchestrator.control.moves.limits import limit_s
from remesh.orchestrator.control.moves.next_mesh import ask_to_form, ask_vaults, waiting_reason
from remesh.orchestrator.control.moves.parting import ask_to_save_held
from remesh.orchestrator.control.moves.transitions import (
    ask_to_drain,
    ask_to_leave,
    settle_if_parked,
)
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import EndWorker, ReleaseNode, StartWorker
from remesh.orchestrator.control.words.events import ControllerRestarted, RunStarted, StoodStill
from remesh.orchestrator.control.words.phases import Phase


def on_run_started(turn: Turn, _: RunStarted) -> None:
    state, options = turn.state, turn.options
    if state.started:
        return
    state.started = True
    state.roster.count_units(turn.ladder.units)
    state.step = options.first_step
    state.last_generation = options.last_generation
    state.checkpoints.good = list(options.checkpoints)
    take_up(state, options.carried)
    keep_out_again(turn)
    if state.step >= options.steps:
        turn.end(Phase.FINISHED, f"step {state.step} was saved before; 0 steps were left")
        return
    state.reason = waiting_reason(turn)
    turn.wait(options.wait_limit_s)


def on_restarted(turn: Turn, event: ControllerRestarted) -> None:
    state = turn.state
    running = state.phase is Phase.RUNNING
    meanwhile = f"; generation {state.last_generation} trained on" if running else ""
    turn.say(f"the controller is back after {event.down_s:.1f} s{meanwhile}")
    _restart_clocks(turn, event.down_s)
    _ask_for_workers_and_nodes(turn)
    _ask_for_commits(turn)
    _ask_for_phase(turn)
    settle_if_parked(turn)


def on_stood_still(turn: Turn, event: StoodStill) -> None:
    """Nothing was lost, and nobody has to be asked again: all that is waited for comes so much
    later. It is said only where somebody would have been late.

    What lost: to give a phase all its time again. A host that is starved stands still twice a
    second, and whoever hung there was waited for for ever.
    """
    state, for_s = turn.state, event.for_s
    due_s = state.deadlines.earliest_s()
    would_be_late = due_s is not None and due_s <= turn.now_s
    if would_be_late or for_s > turn.timers.node_lost_s(1):
        turn.say(f"the controller stood still for {for_s:.1f} s: nobody was late meanwhile")
    _excuse_phase(turn, for_s)
    state.deadlines.excuse_others(for_s)
    state.last_ready_s = min(state.last_ready_s + for_s, turn.now_s)
    state.checkpoints.put_off(for_s)
    state.deadlines.commit_s = state.checkpoints.next_due_s()


def _excuse_phase(turn: Turn, for_s: float) -> None:
    """Whatever was said meanwhile is heard first.

    All the short standstills of a phase together excuse as much as it may last: many of them do not
    hide who hangs.
    """
    state, deadlines = turn.state, turn.state.deadlines
    if deadlines.phase_s is None:
        return
    more_s = max(for_s, turn.now_s + turn.timers.silent_s - deadlines.phase_s)
    most_s = limit_s(turn, state.phase)
    if for_s < most_s:
        more_s = max(0.0, min(more_s, most_s - deadlines.excused_s))
        deadlines.excused_s += more_s
    moments = (deadlines.phase_s + more_s, state.notice_s)
    deadlines.phase_s = min(at_s for at_s in moments if at_s is not None)


def _restart_clocks(turn: Turn, down_s: float) -> None:
    """Nobody could be heard: what was due meanwhile is no sign of anything."""
    state, timers, deadlines = turn.state, turn.timers, turn.state.deadlines
    if deadlines.phase_s is not None:
        left_s = deadlines.phase_s + down_s - turn.now_s
        again_s = 0.0 if state.phase is Phase.WAITING else limit_s(turn, state.phase)
        turn.wait(max(left_s, _adopt_s(turn) + again_s))
    if deadlines.gather_s is not None:
        state.last_ready_s = turn.now_s
        starting = state.roster.num_starting > 0
        deadlines.gather_s = turn.now_s + timers.gather_s(starting=starting)
    found_s = turn.now_s + _adopt_s(turn)
    if deadlines.judge_s is not None:
        deadlines.judge_s = found_s + timers.judge_s
    deadlines.starting.put_off(down_s, found_s + timers.start_s())
    deadlines.ending.put_off(down_s, found_s + timers.end_s)
    state.checkpoints.put_off(down_s, found_s + timers.commit_s)
    deadlines.commit_s = state.checkpoints.next_due_s()


def _adopt_s(turn: Turn) -> float:
    return turn.timers.adopt_s(len(turn.state.roster.nodes))


def _ask_for_workers_and_nodes(turn: Turn) -> None:
    for worker in turn.state.roster.workers.values():
        if worker.state is WorkerState.STARTING:
            turn.do(StartWorker(worker=worker.name, node=worker.node))
        elif worker.state is WorkerState.ENDING:
            reason = "it was given up before the controller restarted"
            turn.do(EndWorker(worker=worker.name, node=worker.node, reason=reason))
    for node in turn.state.roster.nodes.values():
        if node.state in (NodeState.SPARE, NodeState.DRAINED):
            turn.do(ReleaseNode(node=node.name))


def _ask_for_commits(turn: Turn) -> None:
    """A manifest that was put already stays as it is: putting it again tells of it."""
    for generation in turn.state.checkpoints.ask_again():
        commit_complete(turn, generation)


def _ask_for_phase(turn: Turn) -> None:
    """The store at which a mesh forms died with the controller.

    Members that were still to meet there find out and tell; if nobody has come that far, all of
    them may not know of the mesh yet. Restoring and training need no controller.
    """
    state = turn.state
    match state.phase:
        case Phase.FORMING if len(state.current.unformed) == len(state.current.members):
            ask_to_form(turn)
        case Phase.DRAINING if state.current.held_save is not None:
            ask_to_save_held(turn)
        case Phase.DRAINING if state.step < turn.options.steps:
            ask_to_drain(turn)
        case Phase.FENCING:
            ask_to_leave(turn)
        case Phase.WAITING if state.vaults.awaited:
            ask_vaults(turn)
        case Phase.WAITING | Phase.FORMING | Phase.RESTORING | Phase.RUNNING | Phase.DRAINING:
            return
        case Phase.FINISHED | Phase.FAILED | Phase.STOPPED | Phase.PREEMPTED:
            return
        case _:
            assert_never(state.phase)
