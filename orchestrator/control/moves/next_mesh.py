"""The next mesh: whether there are enough for one, where its state comes from, what it is told."""

from dataclasses import dataclass

from remesh.orchestrator.control.memory.generations import Generation, source_in_short
from remesh.orchestrator.control.memory.membership import WorkerState
from remesh.orchestrator.control.moves.choosing import Choice, choose_mesh
from remesh.orchestrator.control.moves.turn import Turn
from remesh.orchestrator.control.words.commands import AskVaults, Form
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.recovery import Decision, decide_restore
from remesh.orchestrator.job.amendments import with_changes
from remesh.orchestrator.plan.rung import changed_bits
from remesh.orchestrator.user_text import count

KEPT_WHOLE = 2  # generations: the present one, and the one whose last words are still told
MAX_NAMES = 8  # in a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """How many of `what` are there, and how many it takes, in words."""

    what: str
    have: int
    need: str


def form_or_wait(turn: Turn) -> None:
    """Forms from who is there, or waits for enough of them."""
    state, options = turn.state, turn.options
    if enough(turn):
        _form(turn)
        return
    turn.move(Phase.WAITING, reason=waiting_reason(turn), within_s=options.wait_limit_s)
    turn.say(f"{state.reason}, for at most {options.wait_limit_s:.0f} s")
    if state.vaults.asked_in != state.last_generation:
        ask_vaults(turn)


def pause(turn: Turn, pause_s: float, cause: str) -> None:
    """The next mesh is formed then, since the ones before it came to nothing."""
    state = turn.state
    tried = count(state.budget.empty_tries, "generation")
    turn.move(
        Phase.WAITING,
        reason=f"the next mesh is tried in {pause_s:g} s: {tried} in a row broke before a step, "
        f"the last since {cause}",
        within_s=turn.options.wait_limit_s + pause_s,
    )
    turn.say(state.reason)
    state.deadlines.pause_s = turn.now_s + pause_s


def enough(turn: Turn) -> bool:
    """Whether those that are ready make up a mesh."""
    ready_nodes = turn.state.roster.num_ready_nodes
    return num_fitting(turn) > 0 and ready_nodes >= turn.options.min_nodes


def num_fitting(turn: Turn) -> int:
    """Workers of the mesh of those that are ready on the nodes in use, 0 if they are too few."""
    return turn.size(turn.state.roster.ready_units)


def missing(turn: Turn) -> Missing:
    """What a run waits for that has no mesh: workers, unless even the nodes are too few."""
    roster, options = turn.state.roster, turn.options
    if roster.num_ready_nodes >= options.min_nodes or options.min_nodes == 1:
        needed = turn.ladder.needed(options.min_workers)
        return Missing(what="workers", have=roster.num_idle, need=needed)
    return Missing(what="nodes", have=roster.num_ready_nodes, need=str(options.min_nodes))


def lacks(turn: Turn) -> Missing:
    """The same, or what it waits for although it could have a mesh: a larger one before long."""
    if turn.state.deadlines.gather_s is None:
        return missing(turn)
    need = turn.size(turn.state.roster.slot_units)
    return Missing(what="a larger mesh", have=num_fitting(turn), need=str(need))


def waiting_reason(turn: Turn) -> str:
    """What is missing, and who is kept out although it would help."""
    roster, lacking = turn.state.roster, lacks(turn)
    text = f"waiting for {lacking.what}: have {lacking.have}, need {lacking.need}"
    if turn.state.start_trouble:
        text += f"; {turn.state.start_trouble}"
    if turn.state.deadlines.cool_s is None:
        return text
    return f"{text}; {len(roster.kept_out)} in quarantine, as the host was lost before"


def take_up_ladder(turn: Turn) -> None:
    """From now on meshes are picked from the newest ladder."""
    state = turn.state
    if state.next_ladder is not None:
        state.ladder, state.next_ladder = state.next_ladder.ladder, None
        state.roster.count_units(turn.ladder.units)


def take_up_changes(turn: Turn, from_step: int) -> None:
    """What is asked for holds from now on, for steps beyond this one."""
    state, known = turn.state, turn.amendments
    if not state.asked_changes:
        return
    state.amendments = with_changes(known, state.asked_changes, from_step)
    state.asked_changes = ()
    for one in state.amendments:
        if one not in known:
            turn.say(str(one))


def ask_vaults(turn: Turn) -> None:
    """The vaults tell what they hold, and hold it for the next generation."""
    state = turn.state
    generation = state.current.generation
    nodes = state.vaults.ask(generation, state.roster.nodes)
    if nodes:
        turn.do(AskVaults(generation=generation, nodes=nodes))


def ask_to_form(turn: Turn) -> None:
    life = turn.state.current
    turn.do(
        Form(
            generation=life.generation,
            rung=life.rung,
            members=life.members,
            restore=life.restore,
            from_step=life.from_step,
            amendments=turn.amendments,
        )
    )


def _form(turn: Turn) -> None:
    state = turn.state
    slots = tuple(state.vaults.slots(state.lineage, state.heard_step))
    choice = choose_mesh(turn, slots)
    members = choice.members
    checkpoints = state.checkpoints
    decision = decide_restore(members, checkpoints.good, checkpoints.avoid, slots)
    if decision is None:
        avoided = ", ".join(sorted(checkpoints.avoid))
        turn.end(Phase.FAILED, f"no state is left to train from; failed twice: {avoided}")
        return
    take_up_changes(turn, decision.from_step)
    before, schedule = turn.bit_key, _schedule_before(turn)
    life = _next_generation(turn, choice, decision)
    state.last_generation = life.generation
    state.generations.append(life)
    state.bit_key = life.rung.bit_key
    if len(state.generations) > KEPT_WHOLE:
        state.generations[-1 - KEPT_WHOLE].shorten()
    state.step = life.from_step
    state.fault = None
    state.vaults.forget()
    state.lineage.begin(life.generation, life.from_step)
    checkpoints.begin(life.generation, frozenset(life.unparked), life.from_step)
    for member in members:
        worker = state.roster.workers[member.worker]
        state.roster.move(worker, WorkerState.MEMBER)
        worker.rank = member.rank
    turn.move(Phase.FORMING, reason=life.reason, within_s=turn.timers.form_s)
    state.deadlines.gather_s = state.deadlines.pause_s = None
    turn.say(f"generation {life.generation}: {life.layout} {life.reason}")
    if before is not None and before != life.rung.bit_key:
        turn.say(_of_other_bits(turn, before, life.rung.bit_key))
    if life.rung.schedule != schedule and (why := turn.ladder.schedule_reason(life.rung)):
        turn.say(why)
    if choice.spare and turn.ladder.above(life.rung):
        workers = count(choice.spare, "worker", "stays", "stay")
        turn.say(f"{workers} spare: {turn.ladder.spare_reason(life.rung)}")
    ask_to_form(turn)


def _of_other_bits(turn: Turn, before: str, after: str) -> str:
    """That the bits change, and whether they would not if there were room."""
    what = "the bits"
    own, *others = dict.fromkeys(flight.bit_key for flight in turn.ladder.flights)
    if after != own and before in (own, *others):
        what = "no mesh with the same bits fits; they"
    return f"{what} change from here on: {changed_bits(before, after)}"


def _schedule_before(turn: Turn) -> str:
    """That of the newest mesh, empty before the first one."""
    return turn.state.current.rung.schedule if turn.state.generations else ""


def _next_generation(turn: Turn, choice: Choice, decision: Decision) -> Generation:
    state = turn.state
    names = {member.worker for member in choice.members}
    start = f"from step {decision.from_step} {decision.reason}"
    return Generation(
        generation=state.last_generation + 1,
        rung=choice.rung,
        members=choice.members,
        num_workers=len(names),
        restore=decision.restore,
        source=source_in_short(decision.restore),
        from_step=decision.from_step,
        reason=f"{start}: {_why(turn, names)}",
        lost_steps=max(0, state.step - decision.from_step) if state.generations else 0,
        asked_s=turn.now_s,
        fault=state.fault,
        unformed=set(names),
        unrestored=set(names),
        unparked=set(names),
        heard_step=decision.from_step,
        is_last=state.parting is not None,
    )


def _why(turn: Turn, names: set[str]) -> str:
    state = turn.state
    if not state.generations:
        return _why_started(turn.options)
    joined = sorted(names - {member.worker for member in state.current.members})
    more = f" and {len(joined) - MAX_NAMES} more" if len(joined) > MAX_NAMES else ""
    joining = f"; {', '.join(joined[:MAX_NAMES])}{more} joined" if joined else ""
    if state.fault is not None:
        return state.fault.cause + joining
    return state.reason + joining


def _why_started(options: Options) -> str:
    """An imported model is a checkpoint at step 0; another machine has no journal that counts."""
    if options.start > 1:
        return f"taken up again, start {options.start}"
    return "taken up again" if options.first_step else "first start"
