"""State from a peer: the cheapest way back, since replicas hold the same bits."""

import torch

from remesh.parallel.collectives import broadcast_
from remesh.parallel.engine import Engine
from remesh.parallel.group import Group


def broadcast_state(engine: Engine, group: Group, *, source: int, at_step: int) -> None:
    """Brings every rank to `at_step` with the state of the rank `source`. All ranks call it.

    A rank that is there already keeps what it has; any other holds no state until it has received
    all of it. What arrives is copied, never received in place: a broadcast that is left behind may
    still write.

    Raises: Cancelled, GroupError.
    """
    assert group.rank != source or engine.at_step == at_step
    fills = engine.at_step != at_step
    if fills:
        engine.at_step = None
    for tensor in engine.flat_state():
        passed = tensor if group.rank == source else torch.empty_like(tensor)
        broadcast_(group, passed, source)
        if fills:
            tensor.copy_(passed)
    engine.loaded(at_step)
