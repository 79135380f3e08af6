import math

import pytest
import torch

from remesh.parallel.numerics.losses import IGNORE_INDEX, summed_cross_entropy


def logits_of(losses_T):
    """Logits over two tokens for which target 0 costs exactly these losses."""
    return torch.tensor([[[0.0, math.log(math.expm1(loss))] for loss in losses_T]])


def test_microbatches_of_ten_and_two_tokens_give_the_mean_over_twelve():
    sums, counts = [], []
    for wanted in ([2.0] * 10, [8.0] * 2):
        targets_BT = torch.zeros(1, len(wanted), dtype=torch.int64)
        losses = summed_cross_entropy(logits_of(wanted), targets_BT)
        sums.append(losses.cross_entropy.item())
        counts.append(losses.num_tokens)
    assert sum(sums) / sum(counts) == pytest.approx(3.0, rel=1e-6)


def test_gradients_of_uneven_microbatches_add_up_to_those_of_one_batch():
    weight = torch.randn(16, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    x_BTC = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(1))
    targets_BT = torch.arange(12).remainder(9)[None]
    losses = summed_cross_entropy(x_BTC @ weight, targets_BT)
    (whole,) = torch.autograd.grad(losses.objective, weight)
    for span in (slice(0, 10), slice(10, 12)):
        summed_cross_entropy(x_BTC[:, span] @ weight, targets_BT[:, span]).objective.backward()
    torch.testing.assert_close(weight.grad, whole, rtol=1e-6, atol=1e-6)


def test_ignored_tokens_count_nowhere():
    logits_BTV = logits_of([1.0, 7.0, 1.0]).requires_grad_()
    targets_BT = torch.tensor([[0, IGNORE_INDEX, 0]])
    losses = summed_cross_entropy(logits_BTV, targets_BT)
    losses.objective.backward()
    assert losses.objective.item() == pytest.approx(2.0, rel=1e-6)
    assert losses.num_tokens == 2
    assert torch.equal(logits_BTV.grad[0, 1], torch.zeros(2))


def test_nothing_but_ignored_tokens_is_zero_and_finite():
    logits_BTV = torch.randn(2, 3, 5, requires_grad=True)
    losses = summed_cross_entropy(logits_BTV, torch.full((2, 3), IGNORE_INDEX))
    losses.objective.backward()
    assert (losses.objective.item(), losses.num_tokens) == (0.0, 0)
    assert torch.equal(logits_BTV.grad, torch.zeros(2, 3, 5))


def test_equal_logits_cost_the_log_of_the_vocabulary():
    losses = summed_cross_entropy(torch.zeros(1, 1, 7), torch.tensor([[3]]))
    assert losses.objective.item() == pytest.approx(1.945910, abs=1e-6)


def test_large_logits_stay_finite_and_the_sum_is_fp32():
    logits_BTV = torch.tensor([[[3e4, -3e4]]], dtype=torch.bfloat16)
    losses = summed_cross_entropy(logits_BTV, torch.tensor([[1]]))
    assert losses.objective.dtype == torch.float32
    assert losses.objective.item() == pytest.approx(6e4, rel=1e-2)
