"""Backward in two halves: the bits of a whole one, weights in the second half, no work twice."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from piped import MODEL as SMALL
from piped import TIED
from small_engine import filler, spec
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.model.maths import Whole
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.spec import Precision
from remesh.parallel.step.engine import Engine
from remesh.parallel.techniques.halved import Halved

MICROBATCHES = 2
LARGE = replace(SMALL, num_layers=1, width=512, ffn_width=512, bias=True)  # maps of 2^18 elements
ONE = replace(SMALL, num_layers=1)
KINDS = {
    "plain": {"model": ONE},
    "large": {"model": LARGE},
    "all kinds of parameters": {"model": replace(TIED, num_layers=2)},
    "full": {"model": ONE, "recompute": Recompute(mode="full")},
    "attention": {
        "model": replace(TIED, num_layers=1),
        "recompute": Recompute(mode="attention"),
    },
    "bf16": {"model": ONE, "precision": Precision(compute=torch.bfloat16)},
}
WIDE = {"model": replace(ONE, ffn_width=256)}


class Products(TorchDispatchMode):
    """How many matrix products there were, by their shapes."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::").partition(".")[0]
        if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm"):
            shapes = tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))
            self.seen[shapes[-2:]] += 1
        return function(*args, **(kwargs or {}))


class Made(TorchDispatchMode):
    """What of all that is computed is there still, in bytes."""

    def __init__(self):
        super().__init__()
        self._sizes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple) else [made]:
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                self._sizes[StorageWeakRef(storage)] = storage.nbytes()
        return made

    @property
    def num_bytes(self):
        return sum(size for ref, size in self._sizes.items() if not ref.expired())


def assembly_of(kind, schedule):
    engine = Engine(spec(1, MICROBATCHES, **{**KINDS, "wide": WIDE}[kind]))
    engine.form(Mesh.alone(), (), schedule)
    engine.reset()
    return engine.assembly


def batch(microbatch, model):
    tokens = np.empty((2, model.seq_len + 1), dtype=np.uint16)
    filler(1)(2 * microbatch, tokens)
    tokens = torch.from_numpy(tokens.astype(np.int64))
    return tokens[:, :-1], tokens[:, 1:]


def gradients(kind, *, halves):
    """Those of two microbatches, the products of backward, and how many before the second half.

    The second microbatch goes forward, and back to its input, before the first one's second half.
    """
    assembly = assembly_of(kind, "zb-h1" if halves else "1f1b")
    [stage] = assembly.stages.values()
    x, targets = zip(*(batch(n, assembly.spec.model) for n in range(MICROBATCHES)), strict=True)
    passages = [stage.forward(x[n], targets[n]) for n in range(MICROBATCHES)]
    with Products() as products:
        if halves:
            for passage in passages:
                assert stage.backward_input(passage, None) is None
                assert passage.inputs == passage.outputs == []
        first = products.seen.total()
        assert assembly.workspace.lent_bytes == 0
        for number, passage in enumerate(passages):
            ends = number == MICROBATCHES - 1
            if halves:
                stage.backward_weights(passage, 0, ends_leaf=ends)
                assert not passage.later
            else:
                stage.backward(passage, None, 0, ends_leaf=ends)
    return assembly.accumulators.finish(), products.seen, first


@pytest.mark.parametrize("kind", KINDS)
def test_two_halves_give_the_bits_of_one_whole_with_the_same_products(kind):
    whole, products, _ = gradients(kind, halves=False)
    found, halved, first = gradients(kind, halves=True)
    assert all(gradient.any() for gradient in whole)
    assert all(map(torch.equal, found, whole))
    assert halved == products
    assert 0 < first < halved.total()


def test_no_parameter_has_a_gradient_before_the_second_half():
    """Not a large map's, nor that of a norm, of a bias, of heads, or of an embedding."""
    assembly = assembly_of("all kinds of parameters", "zb-h1")
    [stage] = assembly.stages.values()
    passage = stage.forward(*batch(0, assembly.spec.model))
    parameters = {id(p): p for part in parts_of(assembly) for p in part.parameters.values()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    stage.backward_input(passage, None)
    assert not any(parameter.grad.any() for parameter in parameters.values())
    stage.backward_weights(passage, 0, ends_leaf=False)
    assert all(parameter.grad.any() for parameter in parameters.values())


def parts_of(assembly):
    return assembly.accumulators._contributions


def test_only_a_schedule_that_asks_for_halves_pays_for_them():
    assert isinstance(assembly_of("plain", "zb-h1").model.maths, Halved)
    assert isinstance(assembly_of("plain", "1f1b").model.maths, Whole)


def test_what_lies_between_maps_is_freed_with_the_first_half():
    """Of attention nothing is kept: its probabilities and heads are no input of a map."""
    assembly = assembly_of("plain", "zb-h1")
    [stage] = assembly.stages.values()
    kept = []

    def pack(tensor):
        kept.append(torch.utils.weak.WeakTensorKeyDictionary())
        kept[-1][tensor] = None
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        passage = stage.forward(*batch(0, assembly.spec.model))
    before = sum(len(one) for one in kept)
    stage.backward_input(passage, None)
    after = sum(len(one) for one in kept)
    assert 0 < after < before


def test_what_waits_for_the_second_half_is_less_than_what_waits_for_the_first():
    """The input of each map and the gradient of what it gave, but nothing that it gave."""
    assembly = assembly_of("wide", "zb-h1")
    [stage] = assembly.stages.values()
    with Made() as made:
        passage = stage.forward(*batch(0, assembly.spec.model))
        before = made.num_bytes
        stage.backward_input(passage, None)
        after = made.num_bytes
    assert 0 < after < before
