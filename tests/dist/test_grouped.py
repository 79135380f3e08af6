"""Products of all experts at once: those of a loop, and of empty experts nothing."""

import pytest
import torch

from remesh.parallel.model.stack_products import Grouped, Looped, has_grouped, products_of

WIDTH, INNER = 32, 48
COUNTS = {
    "even": (4, 4, 4, 4),
    "skewed": (0, 13, 0, 3),
    "one has all": (16, 0, 0, 0),
    "the last one has all": (0, 0, 0, 16),
}


def drawn(counts, dtype, num_stacks):
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(counts), WIDTH)]
    shapes += [(len(counts), INNER, WIDTH)] * num_stacks + [(sum(counts), INNER)] * num_stacks
    x_MC, *others = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x_MC, others[:num_stacks], others[num_stacks:]


def all_of(products, counts, dtype, num_stacks):
    x_MC, weights_EFC, grads_MF = drawn(counts, dtype, num_stacks)
    total_EFC = torch.ones_like(weights_EFC[0])
    products.add_of_weight(total_EFC, grads_MF[0], x_MC)
    return *products.outputs(x_MC, weights_EFC), products.of_input(grads_MF, weights_EFC), total_EFC


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_stacks", [1, 2])
def test_all_at_once_give_what_one_after_the_other_gives(name, dtype, num_stacks):
    counts = COUNTS[name]
    grouped = all_of(Grouped(counts, torch.device("cpu")), counts, dtype, num_stacks)
    looped = all_of(Looped(counts), counts, dtype, num_stacks)
    rounding = {"rtol": 0.02, "atol": 0.1} if dtype == torch.bfloat16 else {}  # of sums of two
    for found, expected in zip(grouped, looped, strict=True):
        torch.testing.assert_close(found, expected, **rounding)
    for found, expected in zip(grouped[:num_stacks], looped, strict=False):
        assert torch.equal(found, expected)


def test_what_an_empty_expert_has_is_not_what_the_kernel_leaves():
    """pytorch/MSLK#158: a kernel that writes nothing for it."""

    class Careless(Grouped):
        def _product(self, rows, others):
            found = super()._product(rows, others)
            if found.ndim == 3:
                found[self._empty] = torch.nan
            return found

    counts = COUNTS["skewed"]
    *_, total_EFC = all_of(Careless(counts, torch.device("cpu")), counts, torch.float32, 1)
    assert torch.equal(total_EFC[0], torch.ones(INNER, WIDTH))
    assert not total_EFC.isnan().any()


def test_a_device_with_the_kernel_has_it_for_narrow_types_and_aligned_rows():
    new, old, none = (9, 0), (7, 5), (0, 0)
    assert has_grouped(new, torch.bfloat16, [64, 128])
    assert has_grouped((8, 0), torch.bfloat16, [8])
    assert not has_grouped(old, torch.bfloat16, [64])
    assert not has_grouped(none, torch.bfloat16, [64])
    assert not has_grouped(new, torch.float32, [64])
    assert not has_grouped(new, torch.bfloat16, [64, 20])


def test_a_cpu_computes_one_after_the_other():
    x_MC, weights_EFC, _ = drawn(COUNTS["even"], torch.bfloat16, 1)
    assert isinstance(products_of(COUNTS["even"], x_MC, weights_EFC), Looped)
