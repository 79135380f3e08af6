"""A layer of experts as it is written where nothing is shared: a loop over experts, dense products.

Each expert takes the tokens that chose it by their indices, and adds what it says, weighed, to
their rows: as transformers' Mixtral does.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def expert_loop(
    x_NC: Tensor, chosen_NK: Tensor, weights_NK: Tensor, stacks: Sequence[Tensor]
) -> Tensor:
    """`stacks` are the maps of all experts: gate, up and down."""
    gate_EFC, up_EFC, down_ECF = stacks
    out_NC = torch.zeros_like(x_NC)
    for expert in range(len(gate_EFC)):
        token_M, place_M = torch.where(chosen_NK == expert)
        own_MC = x_NC[token_M]
        gate_MF = functional.silu(functional.linear(own_MC, gate_EFC[expert]))
        inner_MF = gate_MF * functional.linear(own_MC, up_EFC[expert])
        said_MC = functional.linear(inner_MF, down_ECF[expert])
        out_NC.index_add_(0, token_M, said_MC * weights_NK[token_M, place_M, None])
    return out_NC
