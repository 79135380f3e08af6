"""The learning rate as a function of the step: nothing to save, nothing to advance twice."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LrCurve:
    """Linear warm-up from `peak / warmup_steps`, then constant or down a cosine.

    The cosine reaches `min_lr` at the step `lr_steps` and stays there.
    """

    peak: float
    kind: Literal["cosine", "constant"] = "constant"
    warmup_steps: int = 0
    min_lr: float = 0.0
    lr_steps: int = 0


def lr_at(curve: LrCurve, step: int) -> float:
    """Learning rate of `step`, counted from 1: step k of a warm-up of w trains at k/w of the peak.

    Source: Loshchilov and Hutter 2016 (arXiv:1608.03983), equation 5, without restarts.
    """
    if step <= curve.warmup_steps:
        return curve.peak * step / curve.warmup_steps
    if curve.kind == "constant":
        return curve.peak
    length = max(1, curve.lr_steps - curve.warmup_steps)
    progress = min(1.0, (step - curve.warmup_steps) / length)
    height = (1.0 + math.cos(math.pi * progress)) / 2.0
    return curve.min_lr + (curve.peak - curve.min_lr) * height
