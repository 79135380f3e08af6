"""A small model in the shares of a tensor group, and gradients summed as an engine would do it."""

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from remesh.parallel.groups.collectives import all_gather
from remesh.parallel.model.initial import draw
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import IGNORE_INDEX
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.plan.shares import tensor_shares
from remesh.parallel.techniques.tensor import TensorParallel

SIZES = {
    "num_layers": 2,
    "width": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 48,
    "vocab_size": 61,  # divides by nothing, so that the last rank's rows are padded
    "seq_len": 16,
}
Z_LOSS = 0.01


def config_of(**options):
    return ModelConfig(**(SIZES | options))


def full_values(config, dtype=torch.float64):
    """Every parameter whole; norms and biases random too, so that a mistake with them shows."""
    values = {}
    for name, shape in parameter_shapes(config).items():
        around = 1.0 if name.endswith("norm.weight") else 0.0
        values[name] = draw(3, name, shape, std=0.2).to(dtype) + around
    return values


def whole_model(config, dtype=torch.float64, z_loss=Z_LOSS):
    model = Transformer(config, z_loss=z_loss)
    model.install({name: nn.Parameter(v) for name, v in full_values(config, dtype).items()})
    return model


def shared_model(config, group, shares, dtype=torch.float64, z_loss=Z_LOSS, **how):
    """The model with this rank's shares in it."""
    values = full_values(config, dtype)
    maths = TensorParallel(group, vocab_size=config.vocab_size, **how)
    model = Transformer(config, maths, z_loss=z_loss)
    own = {name: local_value(values[name], share) for name, share in shares.items()}
    model.install({name: nn.Parameter(value) for name, value in own.items()})
    return model


def formed(seat, config, *, sequence, dtype=torch.float64, fence=None, **how):
    """Group, shares and model of this rank."""
    group = seat.form(fence)
    shares = tensor_shares(config, seat.size, seat.rank, sequence=sequence)
    model = shared_model(config, group, shares, dtype, sequence=sequence, **how)
    return group, shares, model


def local_value(full, share):
    value = full.new_zeros(share.local_shape)
    value[tuple(map(slice, share.sizes))] = boxed(full, share)
    return value


def boxed(full, share):
    """The part of a full tensor that a share covers."""
    starts_and_sizes = zip(share.offsets, share.sizes, strict=True)
    return full[tuple(slice(start, start + size) for start, size in starts_and_sizes)]


def batch(config, num_sequences=3, num_positions=None):
    """Tokens and targets; some targets are ignored."""
    generator = torch.Generator().manual_seed(5)
    shape = num_sequences, num_positions or config.seq_len
    tokens_BT = torch.randint(config.vocab_size, shape, generator=generator)
    targets_BT = torch.randint(config.vocab_size, shape, generator=generator)
    targets_BT[:, ::5] = IGNORE_INDEX
    return tokens_BT, targets_BT


def losses_of(model, tokens_BT, targets_BT):
    x_BTC = model.embed(tokens_BT)
    for layer in model.layers:
        x_BTC = layer(x_BTC)
    return model.loss(x_BTC, targets_BT)


def gathered(group, tensor):
    """The ranks' tensors, all of one shape."""
    out = tensor.new_empty(group.size * tensor.numel())
    all_gather(group, out, tensor.flatten())
    return out.view(-1, *tensor.shape)


def summed_gradients(group, model, shares):
    """The gradient of each share's box: parts are summed over their holders."""
    gradients = {}
    for name, share in shares.items():
        gradient = model.get_parameter(name).grad
        if share.partial:  # so it is on every rank
            gradient = gathered(group, gradient)[list(share.holders)].sum(0)
        gradients[name] = gradient[tuple(map(slice, share.sizes))]
    return gradients


def saved_bytes(model, function, x_BTC):
    """Bytes that `function` keeps for its backward pass, parameters aside."""
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out_BTC = function(x_BTC)
    assert out_BTC.requires_grad
    return sum(saved.values())
