"""A second transformer, written in fp64 from the papers' formulas: one sequence, head by head."""

import math

import torch

IGNORED = -100


def objective(config, weights, tokens_BT, targets_BT, z_loss=0.0, router=(0.0, 0.0)):
    """Cross-entropy and z-loss, summed over the tokens that count, and the cross-entropy alone.

    To the first what routers add: `router` are the weights of their auxiliary loss and z-loss.
    """
    cross_entropy = total = torch.zeros((), dtype=torch.float64)
    for tokens_T, targets_T in zip(tokens_BT, targets_BT, strict=True):
        routed = []
        logits_TV = logits(config, weights, tokens_T, routed)
        for judged in routed:
            total = total + router[0] * auxiliary(config, *judged[1:])
            total = total + router[1] * sum(one.exp().sum().log() ** 2 for one in judged[0])
        for logits_V, target in zip(logits_TV, targets_T, strict=True):
            if target != IGNORED:
                log_z = logits_V.exp().sum().log()
                cross_entropy = cross_entropy + log_z - logits_V[target]
                total = total + log_z - logits_V[target] + z_loss * log_z**2
    return total, cross_entropy


def logits(config, weights, tokens_T, routed=None):
    x_TC = weights["embedding.weight"][tokens_T]
    if config.positions == "learned":
        x_TC = x_TC + weights["positions.weight"][: len(tokens_T)]
    for layer in range(config.num_layers):
        own = part_of(weights, f"layers.{layer}")
        x_TC = x_TC + attended(config, normed(config, x_TC, part_of(own, "attention_norm")), own)
        h_TC = normed(config, x_TC, part_of(own, "ffn_norm"))
        if config.has_experts(layer):
            out_TC, judged = by_experts(config, h_TC, part_of(own, "ffn"))
            x_TC = x_TC + out_TC
            if routed is not None:
                routed.append(judged)
        else:
            x_TC = x_TC + fed_forward(config, h_TC, part_of(own, "ffn"))
    head = weights["embedding.weight" if config.tied else "head.weight"]
    return normed(config, x_TC, part_of(weights, "norm")) @ head.T


def part_of(weights, prefix):
    return {n[len(prefix) + 1 :]: w for n, w in weights.items() if n.startswith(prefix + ".")}


def linear(x_TC, weights, name):
    y = x_TC @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def normed(config, x, own):
    if config.norm == "layer":
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + config.norm_eps).sqrt() * own["weight"] + own["bias"]
    return root_mean_square_normed(config, x, own["weight"])


def root_mean_square_normed(config, x, weight):
    return x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight


def turned(config, x_TD):
    """RoPE as the complex product of its definition, by tables of fp32."""
    half = x_TD.shape[1] // 2
    rates = torch.tensor(
        [config.rope_theta ** (-i / half) for i in range(half)], dtype=torch.float64
    )
    angles = torch.arange(len(x_TD)).double()[:, None] * rates
    turn = torch.complex(angles.cos().float().double(), angles.sin().float().double())
    z = torch.complex(x_TD[:, :half], x_TD[:, half:]) * turn
    return torch.cat((z.real, z.imag), dim=1)


def attended(config, x_TC, own):
    q, k, v = (linear(x_TC, own, f"attention.{part}") for part in ("query", "key", "value"))
    heads, width = [], config.head_width
    for head in range(config.num_heads):
        kv_head = head * config.num_kv_heads // config.num_heads
        q_TD = q[:, head * width : (head + 1) * width]
        k_TD = k[:, kv_head * width : (kv_head + 1) * width]
        v_TD = v[:, kv_head * width : (kv_head + 1) * width]
        if config.qk_norm:
            q_TD = root_mean_square_normed(config, q_TD, own["attention.query_norm.weight"])
            k_TD = root_mean_square_normed(config, k_TD, own["attention.key_norm.weight"])
        if config.positions == "rope":
            q_TD, k_TD = turned(config, q_TD), turned(config, k_TD)
        future = torch.ones(len(x_TC), len(x_TC)).triu(1).bool()
        scores = (q_TD @ k_TD.T / math.sqrt(width)).masked_fill(future, -torch.inf)
        heads.append(scores.softmax(-1) @ v_TD)
    return linear(torch.cat(heads, dim=1), own, "attention.output")


def fed_forward(config, x_TC, own):
    up = linear(x_TC, own, "up")
    if config.activation == "gelu":
        return linear(up * (1 + torch.erf(up / math.sqrt(2))) / 2, own, "down")
    gate = linear(x_TC, own, "gate")
    return linear(gate * torch.sigmoid(gate) * up, own, "down")


def by_experts(config, x_TC, own):
    """Token by token; and logits, scores and chosen experts of the router."""
    logits_TE = x_TC @ own["router.weight"].T
    exponentials_TE = logits_TE.exp()
    if config.score == "softmax":
        scores_TE = exponentials_TE / exponentials_TE.sum(1, keepdim=True)
    else:
        scores_TE = exponentials_TE / (1 + exponentials_TE)
    bias_E = own["balance.bias"].detach() if config.balanced else torch.zeros(config.num_experts)
    even = config.top_k * len(x_TC) / config.num_experts
    room = math.ceil(config.capacity_factor * even) if config.capacity_factor else len(x_TC)
    taken, chosen, rows = [0] * config.num_experts, [], []
    for x_C, scores_E in zip(x_TC, scores_TE, strict=True):
        judged = (scores_E.detach() + bias_E).tolist()
        best = sorted(range(config.num_experts), key=lambda e: -judged[e])[: config.top_k]
        total = sum(scores_E[e] for e in best) if config.normed_scores else 1.0
        row = torch.zeros_like(x_C)
        for e in best:
            taken[e] += 1
            if taken[e] <= room:
                expert = {n: w[e] for n, w in part_of(own, "experts").items()}
                row = row + scores_E[e] / total * fed_forward(config, x_C[None], expert)[0]
        chosen += best
        rows.append(row)
    out_TC = torch.stack(rows)
    if config.num_shared_experts:
        out_TC = out_TC + fed_forward(config, x_TC, part_of(own, "shared"))
    return out_TC, (logits_TE, scores_TE, chosen)


def auxiliary(config, scores_TE, chosen):
    """alpha = 1 of DeepSeek-V3's (17) to (20), for each of the tokens of a sequence."""
    num_tokens, num_experts = scores_TE.shape
    total = 0.0
    for e in range(num_experts):
        load = num_experts / (config.top_k * num_tokens) * chosen.count(e)
        mean = (scores_TE[:, e] / scores_TE.sum(1)).sum() / num_tokens
        total = total + load * mean
    return num_tokens * total
