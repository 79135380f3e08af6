"""A model of 8B parameters whose ranks change their cut, at any number of them."""

from remesh.parallel.holding.own_moves import OwnMoves
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec, ZeroSpec

SPEC = EngineSpec(
    model=ModelConfig(
        num_layers=32,
        width=4096,
        num_heads=32,
        num_kv_heads=8,
        ffn_width=14_336,
        vocab_size=65_536,
        seq_len=4096,
    ),
    seed=0,
    num_leaves=256,
    microbatches_per_leaf=1,
    microbatch=1,
    lr=LrCurve(peak=1e-3),
    optimizer=AdamW(),
    clip=1.0,
    zero=ZeroSpec(stage=3),
)


def a_rank_lost_of(num_ranks):
    """Who holds and who lacks what, as ZeRO 3 goes on with one rank less; the first one has read
    what the lost one held.
    """
    before, after = Layout(dp=num_ranks), Layout(dp=num_ranks - 1)
    old, new = SPEC.cut(before, num_ranks), SPEC.cut(after, num_ranks - 1)
    held = {rank: [old.held_by(before, rank)] for rank in range(num_ranks - 1)}
    held[0].append(old.held_by(before, num_ranks - 1))
    return held, {rank: new.held_by(after, rank) for rank in held}


def its_moves(problem):
    """What a rank in the middle works out for itself."""
    held, lacking = problem
    moves = OwnMoves(SPEC, held, lacking, len(held) // 2)
    return moves.received(), moves.sent()
