"""After a mesh that broke although nobody was lost: whom the next one does without, and when it is.

Tries that come to nothing are made ever more slowly. From the third on the run looks for a node to
blame (`memory/suspicions`), and does without it if it can: it is kept out as one that was lost, for
longer each time. Once a mesh makes steps without it, it is guilty, and needs no second try when it
is back. What lost: to count such tries as failures at once, which ends a run in seconds.
"""

from remesh.orchestrator.control.memory.membership import Node, NodeState
from remesh.orchestrator.control.moves.leaving import fits_without, leave_out, mistrusted_as
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.events import GroupBroken
from remesh.orchestrator.user_text import count

MAX_NAMES = 8


def note_complaint(turn: Turn, event: GroupBroken) -> None:
    """Takes in whom a member waited for in vain."""
    state = turn.state
    members = state.current.members
    ranks = (rank for rank in event.waited_for if 0 <= rank < len(members))
    node = state.roster.workers[event.worker].node
    state.suspicions.note(node, (members[rank].node for rank in ranks))


def note_absent(turn: Turn) -> None:
    """The time to form is over: some may have come and others not."""
    life = turn.state.current
    absent = {member.node for member in life.members if member.worker in life.unformed}
    if len(life.unformed) < len(life.members):
        turn.state.suspicions.note_absent(sorted(absent))


def after_empty_try(turn: Turn, cause: str) -> float:
    """Counts a try that came to nothing, and does without whom it suspects.

    Returns how many seconds to wait before the next.
    """
    state = turn.state
    state.budget.count_empty_try(cause, state.step)
    tries = state.budget.empty_tries
    if state.current.explained:
        return 0.0
    _clear_those_on_trial(turn)
    _suspect(turn, tries)
    return turn.timers.pause_s(tries)


def after_first_step(turn: Turn) -> None:
    """A mesh makes steps: those that it does without were to blame."""
    suspicions = turn.state.suspicions
    for name in suspicions.on_trial:
        suspicions.guilty[name] = suspicions.guilty.get(name, 0) + 1
        turn.say(f"the mesh makes steps without node {name}, which is to blame")
    suspicions.forget()


def _suspect(turn: Turn, tries: int) -> None:
    state = turn.state
    names = dict.fromkeys(member.node for member in state.current.members)
    there = [state.roster.nodes[name] for name in names if name in state.roster.nodes]
    used = [node for node in there if node.state is NodeState.USED]
    suspects = state.suspicions.suspects(used, tries)
    if suspects and len(suspects) < len(used) and fits_without(turn, suspects):
        leave_out(turn, suspects)
        state.suspicions.on_trial.update({node.name: None for node in suspects})
        tried = count(tries, "generation")
        turn.say(f"doing without {_named(suspects)}: {tried} in a row broke before a step")


def _clear_those_on_trial(turn: Turn) -> None:
    """Without them a mesh broke too. Only those who were named stay out."""
    state, suspicions = turn.state, turn.state.suspicions
    if suspicions.pairs or suspicions.absent:
        return
    for name in list(suspicions.on_trial):
        del suspicions.on_trial[name]
        suspicions.cleared[name] = None
        if (node := state.roster.nodes.get(name)) is not None:
            _take_back(turn, node)


def _take_back(turn: Turn, node: Node) -> None:
    quarantine = turn.state.quarantine
    key = mistrusted_as(turn, node)
    if quarantine.count(key):
        quarantine.take_back(key)
    if node.state is NodeState.QUARANTINED:
        node.until_s = turn.now_s
        turn.state.deadlines.cool_s = turn.now_s


def _named(nodes: list[Node]) -> str:
    more = f" and {len(nodes) - MAX_NAMES} more" if len(nodes) > MAX_NAMES else ""
    return f"{', '.join(node.name for node in nodes[:MAX_NAMES])}{more}"
