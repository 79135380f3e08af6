"""What of a run may change on the way: values that hold from a step on.

A run is the job of its first start and its amendments, in the order of their steps. Everything
that asks what a step trains with (engine, stream, ledger, report, fingerprint) asks them. What
shapes parameters, or which samples a step has, is not among them: it would be another run.

In a fingerprint an amendment is a pair of texts, `train.lr@41 = 0.003 -> 0.001`, so that it stays
a flat table which people can read. What lost: to keep the newest values only. A run that goes back
to a checkpoint of before would train the steps up to the change with the values after it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remesh.data.skips import Skips, parse_skips
from remesh.orchestrator.job.curve import AMENDABLE, Fingerprint
from remesh.orchestrator.job.tables.train_tables import TrainTable
from remesh.orchestrator.user_errors import UserError

Setting = str | int | float

SKIP = "data.skip"

_DEFAULTS: Mapping[str, Setting] = {
    SKIP: "",
    **{
        f"train.{name}": field.default
        for name, field in TrainTable.model_fields.items()
        if f"train.{name}" in AMENDABLE and isinstance(field.default, Setting)
    },
}
_KEY = re.compile(r"([a-z]+\.[a-z0-9_]+)@([1-9]\d{0,17})", re.ASCII)
_ARROW = " -> "


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """From this step on a key has another value. `old` is None where it was unset."""

    step: int
    key: str
    old: Setting | None
    new: Setting

    def __str__(self) -> str:
        old = "unset" if self.old is None else _text(self.old)
        return f"from step {self.step} on: {self.key} {old}{_ARROW}{_text(self.new)}"


Amendments = tuple[Amendment, ...]


def values_at(amendments: Iterable[Amendment], step: int) -> dict[str, Setting]:
    """What this step trains with, of the keys that were ever amended; none that were unset then."""
    found: dict[str, Setting | None] = {}
    for one in amendments:
        found.setdefault(one.key, one.old)
        if one.step <= step:
            found[one.key] = one.new
    return {key: value for key, value in found.items() if value is not None}


def with_changes(
    amendments: Amendments, changes: Iterable[Amendment], after_step: int
) -> Amendments:
    """These changes on top, none for a step up to `after_step`: those are trained.

    A change takes the place of what was to hold later; one to the value that holds is none.
    """
    for one in changes:
        step = max(one.step, after_step + 1)
        earlier = tuple(a for a in amendments if a.key != one.key or a.step < step)
        old = values_at(earlier, step).get(one.key, one.old)
        added = Amendment(step=step, key=one.key, old=old, new=one.new)
        amendments = earlier if old == one.new else (*earlier, added)
    return tuple(sorted(amendments, key=lambda one: one.step))


def changes_to(
    wanted: Mapping[str, Setting], first: Fingerprint, amendments: Amendments, after_step: int
) -> Amendments:
    """What has to change for a run that stands at a step to go on with the `wanted` values.

    `first` is the fingerprint of its first start. Where the wanted value holds in the next step, it
    is left alone, and so is what was to hold later.
    """
    now = {**_DEFAULTS, **first, **values_at(amendments, after_step + 1)}
    before = {**_DEFAULTS, **first, **values_at(amendments, after_step)}
    return tuple(
        Amendment(step=after_step + 1, key=key, old=_value(before.get(key)), new=value)
        for key, value in wanted.items()
        if now.get(key) != value
    )


def skip_problem(wanted: str, standing: str, after_step: int) -> str | None:
    """Why these batches cannot be skipped by a run at this step, None if they can."""
    old, new = skips_of(standing), skips_of(wanted)
    consumed = old.batch_of(after_step)
    if _up_to(consumed, old) == _up_to(consumed, new):
        return None
    return (
        f"{SKIP} was {_text(standing)} and is {_text(wanted)}, and the run stands at step "
        f"{after_step} with the batches up to {consumed} behind it; the first that may be skipped, "
        f"or skipped no more, is {consumed + 1}"
    )


def skips_of(text: str) -> Skips:
    """Those of a fingerprint's text."""
    return parse_skips(text.split(",") if text else ())


def flat(first: Fingerprint, amendments: Iterable[Amendment]) -> Fingerprint:
    """The fingerprint of a run with these amendments."""
    told = {f"{a.key}@{a.step}": f"{_text(a.old)}{_ARROW}{_text(a.new)}" for a in amendments}
    return {**first, **told}


def parted(fingerprint: Fingerprint) -> tuple[Fingerprint, Amendments]:
    """The fingerprint of the first start, and the amendments since.

    Raises: UserError for an amendment that is none.
    """
    first = {key: value for key, value in fingerprint.items() if "@" not in key}
    found = [_amendment(key, fingerprint[key]) for key in fingerprint if "@" in key]
    return first, tuple(sorted(found, key=lambda one: one.step))


def _amendment(text: str, told: Setting) -> Amendment:
    match, halves = _KEY.fullmatch(text), str(told).split(_ARROW)
    try:
        old, new = (json.loads(half) for half in halves)
    except ValueError:
        match = None
    if match is None or match[1] not in AMENDABLE or not isinstance(new, Setting):
        raise UserError(
            f"the fingerprint's {text[:80]} = {str(told)[:80]} is no change of a key; bring the "
            f"file back, or start over with --fresh"
        )
    return Amendment(step=int(match[2]), key=match[1], old=_value(old), new=new)


def _up_to(batch: int, skips: Skips) -> Sequence[tuple[int, int]]:
    return [(first, min(last, batch)) for first, last in skips.ranges if first <= batch]


def _value(found: object) -> Setting | None:
    return found if isinstance(found, Setting) else None


def _text(value: Setting | None) -> str:
    return json.dumps(value)
