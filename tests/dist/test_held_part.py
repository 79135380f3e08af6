"""What parked ranks write of the state makes up all of it, each element once, without a mesh."""

from dataclasses import replace

import pytest
import torch
from piped import TIED
from small_engine import spec, zero

from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.holding.written_part import held_part
from remesh.parallel.optim.optimizer import StateMemory
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout
from remesh.parallel.state.fragments import cover_problems


@pytest.mark.parametrize(
    ("layout", "shards"),
    [
        (Layout(dp=2), 1),
        (Layout(dp=4), 4),
        (Layout(dp=4), 2),
        (Layout(tp=2), 1),
        (Layout(dp=4, tp=2), 2),
        (Layout(pp=3), 1),
        (Layout(dp=2, pp=4, tp=2), 2),
        (Layout(dp=4, ep=2), 1),
        (Layout(dp=4, ep=4), 2),
        (Layout(dp=8, ep=2, tp=2), 8),
        (Layout(dp=4, pp=2, ep=2), 4),
    ],
    ids=str,
)
def test_one_rank_of_each_place_writes_all_of_the_state_between_them(layout, shards):
    """Both ends of a pipeline hold the embedding of a tied model, and one of them writes it."""
    model = TIED if layout.ep == 1 else replace(TIED, num_experts=4, balanced=True)
    job = spec(model=model, zero=zero(3) if shards > 1 else zero(0))
    cut = Cut.of(layout, shards)
    held = {}
    for rank in range(layout.world_size):
        one = cut.held_by(layout, rank)
        held.setdefault(one.place[0], one)
    counts = {one.place[1] for one in held.values()}
    assert counts == {len(held)}
    states = [
        ShardState(job, one, StateMemory(device=torch.device("cpu"))) for one in held.values()
    ]
    written = [fragment for state in states for fragment, _ in held_part(state)]
    assert cover_problems(written) == ()
    names = {fragment.name for state in states for fragment, _ in state.fragments()}
    assert {fragment.name for fragment in written} == names
