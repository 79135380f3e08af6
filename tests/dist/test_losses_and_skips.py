"""Token means over ranks, steps without tokens, steps that all ranks skip, and an fp64 oracle."""

import math

import numpy as np
import pytest
import torch
from small_engine import MODEL, filler, spec, started, state_hash, work_of
from taken_over import take_over

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import Losses, summed_cross_entropy
from remesh.parallel.plan.dealing import deal_in_runs
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.vote import LOSS_UNITS, Ballot, vote
from remesh.parallel.sums.lane import Lane, Sharing
from remesh.parallel.sums.tree import TreeSum
from remesh.parallel.sums.workspace import Workspace


def cast(seat, ballots):
    group = seat.form()
    result = vote(group, Ballot(**ballots[seat.rank]))
    group.close()
    return result


def ballot(mean, tokens, **more):
    return {"loss_units": round(mean * tokens * LOSS_UNITS), "tokens": tokens, **more}


@pytest.mark.parametrize(
    ("ballots", "mean"),
    [
        ([ballot(1.0, 5), ballot(7.0, 1)], 2.0),  # the mean of means would be 4
        ([ballot(2.0, 10), ballot(8.0, 2)], 3.0),  # and here 5
        ([ballot(2.5, 4), ballot(0.0, 0)], 2.5),  # a rank without any token counts for nothing
        ([ballot(0.0, 0), ballot(0.0, 0)], math.nan),
        ([ballot(4.0, 4), ballot(0.0, 4, nonfinite=1)], math.nan),  # inputs A1, parallel A4
    ],
)
def test_the_loss_is_the_mean_over_tokens_and_not_over_ranks(pool, ballots, mean):
    losses = [result.loss for result in pool.run(cast, 2, ballots)]
    assert losses == pytest.approx([mean, mean], abs=0, nan_ok=True)


def test_one_voice_is_enough_to_skip_to_drain_and_to_save(pool):
    ballots = [{}, {"nonfinite": 1}, {"drain": 1, "save": 1}]
    for result in pool.run(cast, 3, ballots):
        assert (result.is_finite, result.drain, result.save) == (False, 1, 1)
    quiet = Ballot()
    assert (quiet.is_finite, quiet.drain, quiet.save) == (True, 0, 0)


def of_microbatch(loss, num_tokens):
    cross_entropy, count = torch.tensor(loss), torch.tensor(num_tokens)
    return Losses(objective=torch.tensor(9.0), cross_entropy=cross_entropy, num_tokens=count)


def test_a_ballot_counts_a_microbatch_or_only_whether_it_is_finite():
    world, ballot = Mesh.alone().world, Ballot()
    ballot.count(of_microbatch(3.0, 2), (5, 6, 2))
    ballot.count(of_microbatch(3.0, 2), None)
    counted = vote(world, ballot)
    assert (counted.loss, counted.tokens, counted.is_finite) == (1.5, 2, True)
    ballot.count(of_microbatch(math.nan, 1), (1, 1, 1))
    ballot.count(of_microbatch(math.inf, 7), None)
    counted = vote(world, ballot)
    assert (counted.tokens, counted.sample_sums) == (3, (6, 7, 3))
    assert (math.isnan(counted.loss), counted.nonfinite) == (True, 2)


def test_a_loss_is_rounded_to_units_as_a_number_would_be():
    losses = (torch.rand(500, dtype=torch.float64) * 50).float().tolist()
    for loss in (*losses, 2.5 / LOSS_UNITS, 3.5 / LOSS_UNITS):
        ballot = Ballot()
        ballot.count(of_microbatch(loss, 1), (0, 0, 1))
        assert vote(Mesh.alone().world, ballot).loss_units == round(loss * LOSS_UNITS)


@pytest.mark.parametrize("loss", [1e30, 3e12, -1e13])
def test_a_loss_too_large_for_the_sum_is_not_finite_and_kills_nobody(pool, loss):
    """parallel A3: it overflowed the vote's integers, or wrapped them to a negative loss."""
    ballot = Ballot()
    ballot.count(of_microbatch(loss, 2), (0, 0, 1))
    for result in pool.run(cast, 2, [{"passed": ballot.passed}] * 2):
        assert (math.isnan(result.loss), result.nonfinite) == (True, 2)


def masked_gradient(seat, targets):
    """Gradient of the token mean of a linear model whose targets differ in number by rank."""
    weight = torch.full((3, 4), 0.1, requires_grad=True)
    own = targets[
        seat.rank * len(targets) // seat.size : (seat.rank + 1) * len(targets) // seat.size
    ]
    mesh = seat.mesh()
    dealing = deal_in_runs(LeafTree(num_leaves=len(targets)), seat.size)
    tree = TreeSum(
        Lane(
            pieces=Pieces(size=64, num_shards=1, num_replicas=seat.size),
            sharing=Sharing(data=mesh.data, shard=mesh.shard, replica=mesh.replica),
            dealing=dealing,
            workspace=Workspace(weight.device),
            dtype=torch.float32,
        )
    )
    counted = Ballot()
    for number, row in enumerate(own):
        inputs = torch.arange(3.0 * len(row)).view(1, -1, 3) / 10
        losses = summed_cross_entropy(inputs @ weight, torch.tensor([row]))
        [gradient] = torch.autograd.grad(losses.objective, weight)
        counted.count(losses, (0, 0, 1))
        buffer = tree.take()
        buffer[:12] = gradient.flatten()
        tree.add(dealing.portions[seat.rank][number], buffer)
    tree.start()
    tree.advance()
    total = tree.total()
    result = vote(mesh.world, counted)
    mesh.close()
    return result.loss, (total[:12] / max(1, result.tokens)).tolist()


@pytest.mark.parametrize(
    "targets",
    [
        [[0, 1, 2, 3, 0], [1, -100, -100, -100, -100]],
        [[0, 1, 2, 3, 0], [-100] * 5],
        [[-100] * 5, [-100] * 5],
    ],
)
def test_masked_tokens_weigh_nothing_on_any_rank(pool, targets):
    weight = torch.full((3, 4), 0.1, requires_grad=True)
    inputs = torch.arange(15.0).view(1, 5, 3).expand(2, 5, 3) / 10
    losses = summed_cross_entropy(inputs @ weight, torch.tensor(targets))
    num_tokens = max(1, losses.num_tokens.item())
    [expected] = torch.autograd.grad(losses.objective / num_tokens, weight)
    for mean, gradient in pool.run(masked_gradient, 2, targets):
        expected_mean = losses.cross_entropy.item() / num_tokens if losses.num_tokens else math.nan
        assert mean == pytest.approx(expected_mean, rel=1e-6, nan_ok=True)
        assert gradient == pytest.approx(expected.flatten().tolist(), abs=1e-6)


def poison(seat, poisoned_rank, kind):
    """Step 2 goes wrong on one rank only; steps 1 and 3 are as always."""
    mesh = seat.mesh()
    engine = started(mesh, spec(clip=1.0))
    engine.step(1, work_of(mesh, 1))
    before = state_hash(engine)
    handle = None
    if seat.rank == poisoned_rank:
        handle = spoil(engine, kind)
    skipped = engine.step(2, work_of(mesh, 2))
    if handle:
        handle.remove()
    kept = state_hash(engine) == before
    normal = engine.step(3, work_of(mesh, 3))
    mesh.close()
    return skipped.applied, kept, normal.applied, math.isfinite(skipped.loss), state_hash(engine)


def spoil(engine, kind):
    head = engine.assembly.model.head
    if kind == "loss":
        return head.register_forward_hook(lambda *args: args[2] * math.inf)
    return head.weight.register_hook(lambda gradient: gradient * math.nan)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_one_bad_rank_makes_all_skip_the_step_and_go_on(pool, kind):
    outcomes = pool.run(poison, 4, 2, kind)
    assert len(set(outcomes)) == 1
    skipped_applied, kept, normal_applied, finite, _ = outcomes[0]
    assert (skipped_applied, kept, normal_applied) == (False, True, True)
    assert finite == (kind != "loss")


def rates(seat, first_steps):
    """Learning rates with a new engine after `first_steps`, its state taken over by name."""
    mesh = seat.mesh()
    engine = started(mesh)
    seen = [engine.step(k, work_of(mesh, k)).lr for k in range(1, first_steps + 1)]
    resumed = Engine(spec())
    resumed.form(mesh)
    take_over(resumed, {part: t.clone() for part, t in engine.fragments()}, first_steps)
    seen += [resumed.step(k, work_of(mesh, k)).lr for k in range(first_steps + 1, 9)]
    return seen, state_hash(resumed)


def test_a_resumed_run_has_the_rates_and_the_bits_of_an_unbroken_one(pool):
    [expected] = pool.run(rates, 1, 0)
    assert pool.run(rates, 1, 5) == [expected]
    assert expected[0][:3] == pytest.approx([1e-3, 2e-3, 3e-3])


def train_a_little(seat):
    mesh = seat.mesh()
    engine = started(mesh, spec(clip=0.0))
    results = [engine.step(step, work_of(mesh, step)) for step in (1, 2, 3)]
    mesh.close()
    return results, {part.name: tensor.clone() for part, tensor in engine.fragments()}


def test_steps_agree_with_one_fp64_process_that_sees_the_whole_batch(pool):
    results, state = pool.run(train_a_little, 3)[1]
    model = Transformer(MODEL).double()
    model.reset(7)
    named = dict(model.named_parameters())
    matrices = [p for p in named.values() if p.ndim > 1]
    others = [p for p in named.values() if p.ndim == 1]
    oracle = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    for step, result in enumerate(results, start=1):
        batch = np.empty((48, MODEL.seq_len + 1), dtype=np.uint16)
        filler(step)(0, batch)
        tokens = torch.from_numpy(batch.astype(np.int64))
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        oracle.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        for group in oracle.param_groups:
            group["lr"] = result.lr
        oracle.step()
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        assert result.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    for name, parameter in named.items():
        torch.testing.assert_close(state[name].double(), parameter.data, rtol=1e-3, atol=1e-4)
