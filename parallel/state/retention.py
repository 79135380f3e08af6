"""Which checkpoints of a run stay: a pure decision; `checkpoint.prune` carries it out."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from remesh.parallel.state.root_manifest import CheckpointRef

# How old a checkpoint has to be for a way back from a spike of the loss, in steps. PaLM went back
# about 100 (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1).
MIN_BACK_STEPS = 50
MAX_BACK_STEPS = 150

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The union of what is asked for; 0 asks for nothing.

    `last`: the newest ones. `every`: those of steps that it divides. `best`: those with the best
    values of `metric`, of equal ones the newer. `way_back`: one that is 50 to 150 steps old.
    """

    last: int = 1
    every: int = 0
    best: int = 0
    metric: str = "loss"
    higher_is_better: bool = False
    way_back: bool = True


def retained(
    refs: Collection[CheckpointRef],
    policy: Retention,
    metrics: Mapping[CheckpointRef, Metrics] | None = None,
) -> set[CheckpointRef]:
    """Those of a run's checkpoints that stay; the newest always does."""
    newest_first = sorted(refs, reverse=True)
    kept = set(newest_first[: max(policy.last, 1)])
    if policy.every:
        kept |= {ref for ref in newest_first if ref.step % policy.every == 0}
    if policy.best:
        kept |= set(_best(newest_first, policy, metrics or {})[: policy.best])
    if policy.way_back:
        kept |= set(_way_back(newest_first))
    return kept


def _best(
    newest_first: Iterable[CheckpointRef],
    policy: Retention,
    metrics: Mapping[CheckpointRef, Metrics],
) -> list[CheckpointRef]:
    sign = -1 if policy.higher_is_better else 1
    values = {ref: metrics.get(ref, {}).get(policy.metric, math.nan) for ref in newest_first}
    rated = [ref for ref, value in values.items() if math.isfinite(value)]
    return sorted(rated, key=lambda ref: sign * values[ref])


def _way_back(newest_first: Iterable[CheckpointRef]) -> list[CheckpointRef]:
    """The oldest one that is young enough, and those that take its place when it is too old.

    One of them is in the window at each later step if any checkpoint ever saved is: from each to
    the next there are no more steps than the window is wide, or nothing was saved in between.
    """
    of_step = {ref.step: ref for ref in sorted(newest_first)}  # of one step the last generation
    steps = [step for step in of_step if step >= max(of_step) - MAX_BACK_STEPS]
    chain = steps[:1]
    for step, following in zip(steps[1:], [*steps[2:], None], strict=False):
        if following is None or following > chain[-1] + MAX_BACK_STEPS - MIN_BACK_STEPS:
            chain.append(step)
    return [of_step[step] for step in chain]
