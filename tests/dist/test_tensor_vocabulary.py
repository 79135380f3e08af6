"""Cross-entropy and embedding over a vocabulary that does not divide, against the whole one."""

import math

import pytest
import torch

from remesh.parallel.numerics.losses import IGNORE_INDEX, summed_cross_entropy
from remesh.parallel.plan.shares import padded_rows, vocabulary_rows
from remesh.parallel.techniques.vocabulary import cross_entropy_, lookup, lookup_gradient

SHAPE = (2, 6)


def own_rows(full_V, rows, num_rows):
    """This rank's part of the last dimension; what pads it is not 0, and must not matter."""
    own_V = full_V.new_full((*full_V.shape[:-1], num_rows), 3.0)
    own_V[..., : len(rows)] = full_V[..., rows.start : rows.stop]
    return own_V


def cross_entropy_of(seat, vocab_size, scale, z_loss, dtype, ignored=()):
    """The losses of the shares and of the whole, and the relative error of the gradient."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits_BTV = torch.randn(*SHAPE, vocab_size, generator=generator, dtype=torch.float64)
    logits_BTV = (scale * logits_BTV).to(dtype).requires_grad_()
    targets_BT = torch.randint(vocab_size, SHAPE, generator=generator)
    targets_BT[:, list(ignored)] = IGNORE_INDEX
    whole = summed_cross_entropy(logits_BTV, targets_BT, z_loss)
    (2 * whole.objective).backward()
    group = seat.form()
    rows = vocabulary_rows(vocab_size, seat.size, seat.rank)
    num_rows = padded_rows(vocab_size, seat.size)
    own_BTV = own_rows(logits_BTV.detach(), rows, num_rows).requires_grad_()
    found = cross_entropy_(group, own_BTV.clone(), targets_BT, rows, z_loss)
    (2 * found.objective).backward()
    group.close()
    assert not own_BTV.grad[..., len(rows) :].any()
    wanted_BTV = logits_BTV.grad[..., rows.start : rows.stop]
    difference_BTV = own_BTV.grad[..., : len(rows)] - wanted_BTV
    largest = logits_BTV.grad.abs().max().item() or 1.0
    off = difference_BTV.abs().max().item() / largest if len(rows) else 0.0
    return [numbers(found), numbers(whole)], off


def numbers(losses):
    return losses.objective.item(), losses.cross_entropy.item(), losses.num_tokens.item()


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_equal_logits_give_the_logarithm_of_the_vocabulary(pool, tp):
    outcomes = pool.run(cross_entropy_of, tp, 7, 0.0, 0.0, torch.float64)
    for [(objective, _, num_tokens), _], _ in outcomes:
        assert num_tokens == 12
        assert objective / num_tokens == pytest.approx(math.log(7), rel=1e-14)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize(("tp", "vocab_size"), [(2, 7), (2, 64), (4, 61), (4, 5), (5, 2)])
def test_any_logits_give_what_the_whole_vocabulary_gives(pool, tp, vocab_size, z_loss):
    outcomes = pool.run(cross_entropy_of, tp, vocab_size, 20.0, z_loss, torch.float64, (1, 4))
    assert len({outcome[0][0] for outcome in outcomes}) == 1  # the same bits on all ranks
    for [found, whole], off in outcomes:
        assert found == pytest.approx(whole, rel=1e-13)
        assert off < 1e-13


def test_low_precision_logits_are_summed_in_fp32(pool):
    for [found, whole], off in pool.run(cross_entropy_of, 2, 61, 5.0, 0.1, torch.bfloat16):
        assert found == pytest.approx(whole, rel=1e-6)
        assert off < 1e-2


def test_no_token_at_all(pool):
    for [found, _], off in pool.run(cross_entropy_of, 2, 7, 1.0, 0.1, torch.float64, range(6)):
        assert found == (0.0, 0.0, 0)
        assert off == 0.0


def test_the_parts_of_an_embedding_add_up_and_so_do_their_gradients():
    generator = torch.Generator().manual_seed(0)
    weight_VC = torch.randn(7, 4, generator=generator, dtype=torch.float64).requires_grad_()
    tokens_BT = torch.randint(7, SHAPE, generator=generator)
    grad_BTC = torch.randn(*SHAPE, 4, generator=generator, dtype=torch.float64)
    (weight_VC[tokens_BT] * grad_BTC).sum().backward()
    total_BTC, gradients = 0, []
    for rank in range(3):
        rows = vocabulary_rows(7, 3, rank)
        own_VC = own_rows(weight_VC.detach().t(), rows, 3).t().contiguous()
        part_BTC, index_BT = lookup(tokens_BT, own_VC, rows)
        total_BTC = total_BTC + part_BTC
        gradient_VC = lookup_gradient(grad_BTC, index_BT, 3)
        assert not gradient_VC[len(rows) :].any()
        gradients.append(gradient_VC[: len(rows)])
    assert torch.equal(total_BTC, weight_VC.detach()[tokens_BT])
    assert torch.allclose(torch.cat(gradients), weight_VC.grad, rtol=1e-14, atol=1e-14)
