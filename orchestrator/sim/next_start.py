"""What the next start of a simulated run begins with: its journal and its storage say."""

from dataclasses import replace

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.carrying import carried_of
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import CheckpointState, FreshState
from remesh.orchestrator.sim.shells.world import World


def next_options(before: Controller, world: World) -> Options:
    """The newest checkpoint that the lineage holds first; generations go on.

    Where somebody has asked for other degrees, the next start keeps to them.
    """
    options, state = before.options, before.state
    wished = state.next_ladder.ladder if state.next_ladder else state.ladder
    known = {one.name for one in options.checkpoints if one.step <= _first_step(before)}
    found = [
        CheckpointState(step=saved.step, name=name)
        for name, saved in world.committed.items()
        if name in known or state.lineage.holds(saved.generation, saved.step)
    ]
    found.sort(key=lambda one: one.step, reverse=True)
    return replace(
        options,
        start=options.start + 1,
        ladder=wished or options.ladder if state.asked_layout else world.settings.ladder,
        resume=found[0] if found else FreshState(),
        fallbacks=tuple(found[1:]),
        last_generation=max(state.last_generation, options.last_generation),
        amendments=before.amendments,
        carried=carried_of(state),
    )


def _first_step(before: Controller) -> int:
    """Where the timeline of this start begins that it stands on."""
    chain = before.state.lineage.chain
    return chain[0][1] if chain else before.options.first_step
