"""Where a run stands in numbers that people ask for, from what it has done so far."""

from dataclasses import dataclass

from remesh.orchestrator.accounts.pace import left_s, pace_s
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`step_s` is the pace at which `left_s` is reckoned; `goodput` is a share of all time so far.

    None stands for what is not known yet. `losses` are a fixed number of points over all steps,
    `saved_at_s` is the moment of the newest commit.
    """

    starts: int
    step_s: float | None
    left_s: float | None
    tokens_per_s: float | None
    goodput: float | None
    tokens: int
    skipped_steps: int
    lost_steps: int
    saved_at_s: float | None
    losses: tuple[float, ...]


def standing_of(view: View, tally: Tally) -> Standing:
    pace = pace_s(tuple(tally.saves.recent))
    last = view.last
    spent_s = tally.goodput.productive_s + sum(tally.goodput.unproductive_s.values())
    return Standing(
        starts=tally.starts,
        step_s=pace,
        left_s=None if view.ended else left_s(pace, step=view.step, steps=view.steps),
        tokens_per_s=last.did.tokens / last.step_s if last and last.step_s > 0 else None,
        goodput=tally.goodput.productive_s / spent_s if spent_s > 0 else None,
        tokens=tally.tokens,
        skipped_steps=tally.skipped_steps,
        lost_steps=tally.lost_steps,
        saved_at_s=tally.saves.saved_at_s,
        losses=tally.losses.losses,
    )
