"""Engines whose model has experts: the same bits however it is cut, empty experts, replicas."""

from dataclasses import replace

import pytest
import torch
from piped import MODEL, SCHEDULES, Piped, assert_same, legal, run
from small_engine import formed, spec, work_of, zero

from remesh.parallel.holding.written_part import own_part
from remesh.parallel.model.dispatch import combine, dispatch, within_capacity
from remesh.parallel.model.expert_maps import Stack, products
from remesh.parallel.model.linear import InPlaceGradient
from remesh.parallel.model.maths import Whole
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.router import RouterRates
from remesh.parallel.plan.layout import Layout
from remesh.parallel.step.engine import Engine
from remesh.parallel.techniques.expert import ExpertParallel

EXPERTS = replace(
    MODEL,
    num_layers=4,
    num_experts=8,
    expert_width=16,
    num_shared_experts=1,
    num_dense_layers=1,
    balanced=True,
)
BIASES = {f"layers.{layer}.ffn.balance.bias" for layer in (1, 2, 3)}
MORE = {"model": EXPERTS, "router": RouterRates(auxiliary=0.02, z_loss=0.01, balance=0.0003)}


def schedules(layout, num_microbatches):
    return {
        name: Piped(schedule=name, more=MORE)
        for name in SCHEDULES
        if legal(name, layout.pp, (num_microbatches,))
    }


def ways():
    recompute = Recompute(mode="full", every=2)
    return {
        "plain": Piped(more=MORE),
        "zero1": Piped(more={**MORE, "zero": zero(1)}),
        "zero3": Piped(more={**MORE, "zero": zero(3)}),
        "again": Piped(more={**MORE, "recompute": recompute}),
    }


def test_no_dp_pipeline_zero_stage_or_recompute_changes_a_bit(pool):
    expected = run(pool, Layout(), {"alone": Piped(more=MORE)})["alone"]
    biases = [t for name, t in expected[1].items() if name in BIASES]
    assert len(biases) == 3
    assert all(abs(bias).max() > 0 for bias in biases)
    assert_same(run(pool, Layout(pp=2), schedules(Layout(pp=2), 8)), expected)
    assert_same(run(pool, Layout(dp=3), ways()), expected)
    assert_same(run(pool, Layout(dp=2, pp=2), ways()), expected)


def test_copies_of_a_router_on_tensor_ranks_stay_equal(pool):
    """pytorch/torchtitan#2387: gradients of a router were parts, and each rank kept its own."""
    for sequence in (False, True):
        more = {**MORE, "sequence": sequence}
        run(pool, Layout(tp=2), {"tp2": Piped(more=more)})  # which compares what several hold


@pytest.mark.parametrize("ep", [2, 4])
def test_no_dp_pipeline_or_zero_stage_changes_a_bit_where_experts_are_shared(pool, ep):
    """As many leaves run together whatever dp is: so many tokens meet at an expert."""
    expected = run(pool, Layout(dp=ep, ep=ep), {"alone": Piped(more=MORE)}, (8, 1, 2))["alone"]
    layouts = [Layout(dp=ep, pp=2, ep=ep)]
    layouts += [Layout(dp=4, ep=2), Layout(dp=6, ep=2)] if ep == 2 else [Layout(dp=8, ep=4)]
    for layout in layouts:
        assert_same(run(pool, layout, ways(), (8, 1, 2)), expected)


MOVES = [
    (Layout(dp=4, ep=2), zero(0)),
    (Layout(dp=2, ep=2), zero(1)),
    (Layout(dp=4, ep=2), zero(1)),
    (Layout(dp=4), zero(3)),
    (Layout(pp=2, dp=2, ep=2), zero(2)),
    (Layout(dp=2, tp=2, ep=2), zero(3)),
    (Layout(dp=4, ep=4), zero(1)),
]


def move(seat, moves):
    """Two steps in each layout, with the state of the one before; and what is written at the end,
    as boxes.
    """
    torch.set_num_threads(1)
    engine, losses = None, []
    for number, (layout, zero_spec) in enumerate(moves):
        holding = engine.holding() if engine else None
        engine = Engine(spec(8, 1, **MORE, zero=zero_spec))
        if seat.rank >= layout.world_size:
            continue
        part = replace(seat, size=layout.world_size)
        generation = seat.generation * 1000 + 10**9 + number
        mesh = part.mesh(layout, zero_spec.shard_size(layout.dp), generation=generation)
        engine.form(mesh)
        if number:
            engine.share(holding, 2 * number, round_bytes=3000)
        else:
            engine.reset()
        steps = (2 * number + 1, 2 * number + 2)
        losses += [engine.step(step, work_of(mesh, step)).loss for step in steps]
        written = [
            (f.name, f.in_whole, f.global_shape, tensor.clone())
            for f, tensor in own_part(engine.shard_state, mesh)
        ]
        mesh.close()
    return losses, written


def test_experts_move_with_all_else_from_layout_to_layout_and_each_byte_is_written_once(pool):
    expected = pool.run(move, 1, [(Layout(), zero(0))] * len(MOVES))[0]
    outcomes = pool.run(move, 4, MOVES)
    assert outcomes[0][0] == pytest.approx(expected[0], rel=1e-6)
    names = {name for name, *_ in expected[1]}
    written = {}
    for _, parts in outcomes:
        for name, where, shape, part in parts:
            whole = written.setdefault(name, torch.full(shape, torch.nan, dtype=torch.float64))
            assert whole[where].isnan().all(), name
            whole[where] = part.double()
    assert written.keys() == names
    assert not any(whole.isnan().any() for whole in written.values())


def rows_sent(seat, picked):
    """How many rows this rank sends to each, and how many its experts get."""
    group = seat.form()
    maths = ExpertParallel(Whole(), group)
    config = replace(EXPERTS, num_experts=4, top_k=1)
    x_BTC = torch.arange(3.0)[None, :, None] + 10 * seat.rank
    chosen_BTK = torch.tensor(picked[seat.rank])[None, :, None]
    sent = maths.dispatch(x_BTC, chosen_BTK, config)
    back_BTC = maths.combine(sent.rows * 2, torch.ones(1, 3, 1), sent)
    group.close()
    assert torch.equal(back_BTC, 2 * x_BTC)
    return sent.routes.sent, sent.counts, sent.rows[:, 0].tolist()


def test_each_rank_gets_the_rows_for_its_experts(pool):
    """Experts 0 and 1 are on rank 0, 2 and 3 on rank 1."""
    first, second = pool.run(rows_sent, 2, [[0, 1, 3], [2, 3, 2]])
    assert [first[0], second[0]] == [(2, 1), (0, 3)]
    assert first[1:] == ((1, 1), [0.0, 1.0])
    assert second[1:] == ((2, 2), [10.0, 12.0, 2.0, 11.0])
    for _, counts, rows in pool.run(rows_sent, 2, [[1, 1, 1], [1, 1, 1]]):
        assert sum(counts) == len(rows)


def bytes_sent(seat, bias):
    torch.set_num_threads(1)
    mesh, engine = formed(seat, Layout(dp=4, ep=2), spec(4, 1, **MORE))
    give_bias(engine, bias)
    before = mesh.experts.bytes_sent
    engine.step(1, work_of(mesh, 1))
    sent = mesh.experts.bytes_sent - before
    mesh.close()
    return sent


def test_what_experts_are_sent_is_what_the_formula_says(pool):
    """All tokens go to experts 0 and 1: those of a rank of the other ones are sent and come back,
    and so do their gradients.
    """
    num_tokens, top_k, num_layers = 2 * EXPERTS.seq_len, EXPERTS.top_k, EXPERTS.num_expert_layers
    rows_bytes = num_tokens * top_k * EXPERTS.width * 4
    counts_bytes = EXPERTS.num_experts // 2 * 8
    formula = num_layers * (2 * rows_bytes + counts_bytes)
    sent = pool.run(bytes_sent, 4, (9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert sent == [formula] * 4


def chosen(rows):
    return torch.tensor(rows)[None]


def test_rows_lie_by_expert_and_come_back_to_their_tokens():
    config = replace(EXPERTS, num_experts=3)
    x_BTC = torch.arange(8.0).view(1, 4, 2)
    sent = dispatch(x_BTC, chosen([[0, 2], [2, 0], [0, 2], [2, 0]]), config)
    assert sent.counts == (4, 0, 4)
    assert sent.rows[:4].tolist() == sent.rows[4:].tolist() == x_BTC[0].tolist()
    weights_BTK = torch.tensor([[0.25, 0.75]]).expand(1, 4, 2)
    assert torch.equal(combine(sent.rows, weights_BTK, sent.places, sent.shape), x_BTC)


def test_a_full_expert_takes_no_more_and_its_tokens_get_nothing_from_it():
    config = replace(EXPERTS, num_experts=4, top_k=2, capacity_factor=1.0)
    picked = chosen([[0, 1], [0, 2], [1, 0], [0, 3]])
    assert within_capacity(picked, 4, 2).tolist() == [[[0, 1], [0, 2], [1, 4], [4, 3]]]
    x_BTC = torch.ones(1, 4, 2, requires_grad=True)
    weights_BTK = torch.ones(1, 4, 2, requires_grad=True)
    sent = dispatch(x_BTC, picked, config)
    assert sent.counts == (2, 2, 1, 1)
    out_BTC = combine(sent.rows, weights_BTK, sent.places, sent.shape)
    assert out_BTC[0, :, 0].tolist() == [2.0, 2.0, 1.0, 1.0]
    out_BTC.sum().backward()
    assert x_BTC.grad[0, :, 0].tolist() == [2.0, 2.0, 1.0, 1.0]
    assert weights_BTK.grad.tolist() == [[[2.0, 2.0], [2.0, 2.0], [2.0, 0.0], [0.0, 2.0]]]


@pytest.mark.parametrize("kind", [torch.nn.Parameter, InPlaceGradient])
def test_gradients_of_experts_without_tokens_are_exactly_zero(kind):
    """pytorch/MSLK#158: they were what memory had held before."""
    dirty = [torch.full((8, 16, 32), torch.nan) for _ in range(20)]
    del dirty
    stack = Stack(8, 32, 16)
    stack.weight = kind(torch.randn(8, 16, 32, generator=torch.Generator().manual_seed(0)))
    if kind is InPlaceGradient:
        stack.weight.grad = torch.zeros(8, 16, 32)
    x_MC = torch.ones(5, 32, requires_grad=True)
    [out_MF] = products(x_MC, (5, 0, 0, 0, 0, 0, 0, 0), stack)
    out_MF.sum().backward()
    assert stack.weight.grad[0].tolist() == [[5.0] * 32] * 16
    assert not stack.weight.grad[1:].any()
    [none_MF] = products(x_MC[:0], (0,) * 8, stack)
    none_MF.sum().backward()
    assert stack.weight.grad[0].tolist() == [[5.0] * 32] * 16


def give_bias(engine, bias):
    for fragment, tensor in engine.shard_state.weights():
        if fragment.name.endswith("balance.bias"):
            tensor.copy_(torch.tensor(bias)[fragment.in_whole])
    engine.loaded(0)


def train_skewed(seat, layout, bias):
    """Of each layer with experts, which of them learned anything."""
    torch.set_num_threads(1)
    mesh, engine = formed(seat, layout, spec(4, 1, **MORE))
    give_bias(engine, bias)
    results = [engine.step(step, work_of(mesh, step)) for step in (1, 2)]
    learned = {}
    for fragment, tensor in engine.fragments():
        if fragment.name.startswith("exp_avg.") and ".experts.up." in fragment.name:
            whole = torch.zeros(fragment.global_shape)
            whole[fragment.in_whole] = tensor
            seen = learned.setdefault(fragment.name, [False] * 8)
            learned[fragment.name] = [
                was or bool(of_expert.any()) for was, of_expert in zip(seen, whole, strict=True)
            ]
    mesh.close()
    assert all(result.applied for result in results)
    return learned


def test_all_tokens_may_go_to_the_same_experts_and_the_others_learn_nothing(pool):
    bias = (9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for layout in (Layout(dp=2), Layout(dp=4, ep=4)):
        for rank, learned in enumerate(pool.run(train_skewed, layout.dp, layout, bias)):
            assert len(learned) == 3
            has_them = layout.ep == 1 or rank == 0
            assert set(map(tuple, learned.values())) == {(has_them, has_them, *[False] * 6)}
