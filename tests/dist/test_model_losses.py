import math

import pytest
import torch

from remesh.parallel.numerics.losses import IGNORE_INDEX, summed_cross_entropy


def logits_of(losses_T):
    """Logits over two tokens for which target 0 costs exactly these losses."""
    return torch.tensor([[[0.0, math.log(math.expm1(loss))] for loss in losses_T]])


@pytest.mark.parametrize(
    ("microbatches", "mean"),
    [
        (([2.0] * 10, [8.0] * 2), 3.0),  # the mean of means would be 5
        (([1.0] * 5, [7.0]), 2.0),  # and here 4
    ],
)
def test_uneven_microbatches_give_the_mean_over_all_tokens(microbatches, mean):
    sums, counts = [], []
    for wanted in microbatches:
        targets_BT = torch.zeros(1, len(wanted), dtype=torch.int64)
        losses = summed_cross_entropy(logits_of(wanted), targets_BT)
        sums.append(losses.cross_entropy.item())
        counts.append(losses.num_tokens)
    assert sum(sums) / sum(counts) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_gradients_of_uneven_microbatches_add_up_to_those_of_one_batch(z_loss):
    weight = torch.randn(16, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    x_BTC = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(1))
    targets_BT = torch.arange(12).remainder(9)[None]
    losses = summed_cross_entropy(x_BTC @ weight, targets_BT, z_loss)
    (whole,) = torch.autograd.grad(losses.objective, weight)
    for span in (slice(0, 10), slice(10, 12)):
        parts = summed_cross_entropy(x_BTC[:, span] @ weight, targets_BT[:, span], z_loss)
        parts.objective.backward()
    torch.testing.assert_close(weight.grad, whole, rtol=1e-6, atol=1e-5)


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


def test_equal_logits_cost_the_log_of_the_vocabulary_and_its_square():
    losses = summed_cross_entropy(torch.zeros(1, 1, 7), torch.tensor([[3]]), z_loss=0.5)
    assert losses.cross_entropy.item() == pytest.approx(1.945910, abs=1e-6)
    assert losses.objective.item() == pytest.approx(1.945910 + 0.5 * 1.945910**2, abs=1e-5)


def test_large_logits_stay_finite_and_the_sum_is_fp32():
    logits_BTV = torch.tensor([[[3e4, -3e4]]], dtype=torch.bfloat16)
    losses = summed_cross_entropy(logits_BTV, torch.tensor([[1]]))
    assert losses.objective.dtype == torch.float32
    assert losses.objective.item() == pytest.approx(6e4, rel=1e-2)


def test_z_loss_is_the_square_of_the_log_of_the_sum_for_each_token():
    logits_BTV = torch.tensor([[[1.0, 2.0, 0.5], [0.0, -1.0, 3.0], [9.0, 9.0, 9.0]]])
    targets_BT = torch.tensor([[0, 2, IGNORE_INDEX]])
    log_z = [math.log(sum(map(math.exp, row))) for row in ((1.0, 2.0, 0.5), (0.0, -1.0, 3.0))]
    losses = summed_cross_entropy(logits_BTV.double(), targets_BT, z_loss=1e-4)
    cross_entropy = log_z[0] - 1.0 + log_z[1] - 3.0
    z_loss = 1e-4 * (log_z[0] ** 2 + log_z[1] ** 2)
    assert losses.cross_entropy.item() == pytest.approx(cross_entropy, rel=1e-14)
    assert losses.objective.item() == pytest.approx(cross_entropy + z_loss, rel=1e-14)
    assert losses.num_tokens == 2


def test_the_gradient_of_the_z_loss_pulls_log_z_to_zero():
    logits_BTV = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)).double()
    logits_BTV.requires_grad_()
    targets_BT = torch.tensor([[0, 3, IGNORE_INDEX], [6, 1, 2]])
    summed_cross_entropy(logits_BTV, targets_BT, z_loss=0.5).objective.backward()
    log_z_BT1 = logits_BTV.detach().logsumexp(-1, keepdim=True)
    softmax_BTV = (logits_BTV.detach() - log_z_BT1).exp()
    hits_BTV = torch.zeros(2, 3, 7).scatter(2, targets_BT.clamp_min(0)[..., None], 1.0)
    counted_BT1 = (targets_BT != IGNORE_INDEX)[..., None]
    expected = (softmax_BTV * (1 + 2 * 0.5 * log_z_BT1) - hits_BTV) * counted_BT1
    torch.testing.assert_close(logits_BTV.grad, expected, rtol=1e-12, atol=1e-14)


def test_nothing_but_ignored_tokens_is_zero_and_finite_with_z_loss():
    logits_BTV = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = summed_cross_entropy(logits_BTV, torch.full((2, 3), IGNORE_INDEX), z_loss=1e-4)
    losses.objective.backward()
    assert (losses.objective.item(), losses.cross_entropy.item(), losses.num_tokens) == (0, 0, 0)
    assert torch.equal(logits_BTV.grad, torch.zeros(2, 3, 5))


@pytest.mark.parametrize("z_loss", [0.0, 1e-4])
def test_the_recorded_cross_entropy_is_alone_and_without_a_graph(z_loss):
    logits_BTV = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets_BT = torch.tensor([[0, 1, 2], [3, 4, 0]])
    plain = summed_cross_entropy(logits_BTV, targets_BT)
    losses = summed_cross_entropy(logits_BTV, targets_BT, z_loss=z_loss)
    assert torch.equal(losses.cross_entropy, plain.objective)
    assert not losses.cross_entropy.requires_grad
    assert losses.objective.requires_grad


def test_a_sum_in_fp64_stays_one():
    logits_BTV = torch.tensor([[[0.0, 1e-12]]], dtype=torch.float64)
    losses = summed_cross_entropy(logits_BTV, torch.tensor([[1]]))
    assert losses.objective.item() == pytest.approx(math.log(2) - 5e-13, abs=1e-15)
