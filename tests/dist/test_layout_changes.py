"""A live run whose degrees change and come back: the same mathematics, and the same bits twice."""

from dataclasses import replace

import pytest
import torch
from one_process import FP64
from piped import TIED, Piped, boxes, differences, put_together, steps
from small_engine import zero
from test_experts import EXPERTS

from remesh.parallel.model.router import RouterRates
from remesh.parallel.plan.layout import Layout
from remesh.parallel.step.engine import Engine

DEALT = (8, 1, 1)
LAST = 6  # of two steps each: one by the weights, the next by all that makes an update
DENSE = {"model": replace(TIED, num_layers=4)}
MOE = {"model": replace(EXPERTS, num_layers=2), "router": RouterRates(auxiliary=0.02, balance=3e-4)}
CLOSE = 1e-6


def live(seat, lives, more):
    """What the steps say, and what is held at the end. A life is a layout with its last step; ranks
    beyond its size hold nothing in it.
    """
    torch.set_num_threads(1)
    case = Piped(more=more)
    spec = case.spec(DEALT)
    engine, step, said = Engine(spec), 0, []
    for number, (layout, last) in enumerate(lives):
        if seat.rank < layout.world_size:
            part = replace(seat, size=layout.world_size)
            shards = spec.zero.shard_size(layout.dp, layout.cp)
            mesh = part.mesh(layout, shards, generation=seat.generation * 1000 + 10**9 + number)
            holding = engine.holding()
            engine.form(mesh, pipeline=case.pipeline(layout.pp))
            if step:
                engine.share(holding, step, round_bytes=3000)
            else:
                engine.reset()
            said += steps(engine, range(step + 1, last + 1))
            mesh.close()
        step = last
    return said, boxes(engine) if engine.at_step == step else []


def outcome(pool, *lives, **more):
    """The results of all steps, and the state at the end as whole tensors."""
    size = max(layout.world_size for layout, _ in lives)
    outcomes = pool.run(live, size, lives, more)
    return put_together([(outcomes[0][0], parts) for _, parts in outcomes if parts])


def there_and_back(home, away):
    return (home, 2), (away, 4), (home, LAST)


HOME = Layout(dp=4)
CASES = {
    "tp": (HOME, Layout(dp=2, tp=2), DENSE),
    "tp, shared": (Layout(dp=2, tp=2), Layout(tp=4), {**DENSE, "zero": zero(3)}),
    "cp": (HOME, Layout(dp=2, cp=2), {**DENSE, "zero": zero(3)}),
    "ep": (HOME, Layout(dp=4, ep=2), {**MOE, "zero": zero(3)}),
    "ep 4": (Layout(dp=4, ep=2), Layout(dp=4, ep=4), MOE),
    "all": (Layout(dp=2, cp=2, ep=4), Layout(pp=2, tp=2), MOE),
}


@pytest.mark.parametrize("name", CASES)
def test_degrees_that_come_back_give_the_same_losses_and_the_same_bits_twice(pool, name):
    home, away, more = CASES[name]
    more = {**more, "precision": FP64}
    first, second = (outcome(pool, *there_and_back(home, away), **more) for _ in range(2))
    assert differences(first, second) == []
    undisturbed, _ = outcome(pool, (home, LAST), **more)
    losses = [one.loss for one in undisturbed]
    assert len(losses) == LAST
    assert [one.loss for one in first[0]] == pytest.approx(losses, rel=CLOSE, abs=0)
    assert first[0] != undisturbed  # other degrees do round in another order


@pytest.mark.parametrize("ep", [2, 4])
def test_no_resize_of_a_live_run_with_shared_experts_changes_a_bit(pool, ep):
    small, large = Layout(dp=ep, ep=ep), Layout(dp=2 * ep, ep=ep)
    resized = outcome(
        pool, (large, 2), (small, 4), (large, LAST),
        **MOE,
    )  # fmt: skip
    for layout in (small, large, Layout(dp=ep, pp=2, ep=ep)):
        undisturbed = outcome(pool, (layout, LAST), **MOE)
        assert differences(resized, undisturbed) == []
