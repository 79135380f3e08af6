"""Workers that live and beat and make no progress: who of them holds up the others.

In a mesh one that hangs stops all: each tells where it stands, and the one that hangs is behind the
others, who wait for it in an operation that it has not come to. So all are heard, and who stands at
the lowest (step, operation) is ended as a frozen one is. Where all stand at the same operation it
is none of them, as far as anybody can see: the mesh is left, and counts as a try that came to
nothing. Of whom nothing is told is between two steps, where it waits for data or storage, or has no
state yet: then the others wait for it, and for how long it may is a limit of its own.

In a step that takes three times as long as usual, those whose processes use no processor tell
early. Once all have, none of them computes, so who is behind has hung, and is ended at once. Where
nobody is behind, or nobody else is there who waits, that is no evidence: it takes as long as ever.

What lost: a limit in seconds for a step, which has to be longer than the longest; and to end the
lowest of those that had told, which killed the one that waited for another's slow storage.
"""

from remesh.orchestrator.control.memory.generations import Generation
from remesh.orchestrator.control.moves.staffing import give_up
from remesh.orchestrator.control.moves.transitions import fence, still_since_s
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import WorkerStuck
from remesh.orchestrator.control.words.phases import Phase

MAX_NAMES = 8
_IN_A_MESH = frozenset({Phase.FORMING, Phase.RESTORING, Phase.RUNNING, Phase.DRAINING})


def on_worker_stuck(turn: Turn, event: WorkerStuck) -> None:
    state = turn.state
    if state.phase not in _IN_A_MESH or event.worker not in state.current.unparked:
        return
    since_s = turn.now_s - event.silent_s
    state.current.stuck[event.worker] = (event.step, event.operation, since_s)
    if event.at_rest:
        state.current.at_rest.add(event.worker)
    else:
        state.current.at_rest.discard(event.worker)
    if event.at_rest and state.current.stuck.keys() == state.current.unparked:
        judge_stuck(turn)
    elif state.deadlines.judge_s is None:
        state.deadlines.judge_s = turn.now_s + turn.timers.judge_s


def judge_stuck(turn: Turn) -> None:
    """Once all that stand still have told of it: ends those who are behind, or leaves the mesh."""
    state, life = turn.state, turn.state.current
    state.deadlines.judge_s = None
    life.stuck = told = _still_there(life, state.step)
    if not told or told.keys() != life.unparked or state.phase not in _IN_A_MESH:
        return
    lowest = min(at[:2] for at in told.values())
    behind = sorted(name for name, at in told.items() if at[:2] == lowest)
    nobody = 2 * len(behind) > len(told)
    if nobody and life.at_rest:
        return
    life.stuck, life.at_rest = {}, set()
    began_s = still_since_s(turn, min(since_s for _, _, since_s in told.values()))
    where = f"before operation {lowest[1]} of step {lowest[0] + 1}"
    if nobody and len(told) > 1:
        life.stalled = True
        fence(turn, f"{_named(behind)} stand still, each {where}", began_s=began_s)
        return
    for name in behind:
        if not give_up(turn, state.roster.workers[name], f"makes no progress: it hangs {where}"):
            return
    fence(turn, f"{_named(behind)} hung {where}", began_s=began_s)


def _still_there(life: Generation, step: int) -> dict[str, tuple[int, int, float]]:
    """A mesh that has finished the step after the next has not waited for them: they went on. That
    counts whether or not the records of all steps before that one have come in.
    """
    return {
        name: at for name, at in life.stuck.items() if name in life.unparked and step <= at[0] + 1
    }


def _named(workers: list[str]) -> str:
    more = f" and {len(workers) - MAX_NAMES} more" if len(workers) > MAX_NAMES else ""
    return ", ".join(workers[:MAX_NAMES]) + more
