"""State from a peer: the cheapest way back, since replicas hold the same bits."""

from remesh.parallel.collectives import broadcast_
from remesh.parallel.engine import Engine
from remesh.parallel.group import Group


def broadcast_state(engine: Engine, group: Group, *, source: int, at_step: int) -> None:
    """Brings every rank to `at_step` with the state of the rank `source`. All ranks call it.

    A rank that is there already gets the same bits again and keeps its place; any other holds no
    state until it has received all of it.

    Raises: Cancelled, GroupError.
    """
    if group.rank == source:
        assert engine.at_step == at_step
    elif engine.at_step != at_step:
        engine.at_step = None
    for tensor in engine.flat_state():
        broadcast_(group, tensor, source)
    engine.at_step = at_step
