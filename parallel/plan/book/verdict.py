"""What the rule book says: each problem in one sentence, with changes that mend it.

A listed value has been tried against all the rules that are asked: it breaks none that held. Where
no value of one key does, several are changed together. Where more than one thing is wrong, a cure
mends as much as its key can, and the next question names the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remesh.parallel.plan.book.asked import Asked, Value
from remesh.parallel.plan.book.cures import Cure
from remesh.parallel.plan.book.rules import RULES, Rule

MOST_CHANGES = 4  # that are named together


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How the asker calls what the rules are about: `tp=2` here, `parallel.tp = 2` in a job."""

    keys: Mapping[str, str] = field(default_factory=dict)
    equals: str = "="

    def name(self, name: str) -> str:
        return self.keys.get(name, name)

    def said(self, name: str, value: Value) -> str:
        return f"{self.name(name)}{self.equals}{shown(value)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Values of one key that mend a rule; each `along` with changes of others."""

    name: str
    values: Sequence[Value]
    along: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A broken rule, and what mends it."""

    asked: Asked
    rule: Rule
    offers: tuple[Offer, ...]

    def text(self, names: Names) -> str:
        """One sentence in the asker's words."""
        seen = self.rule.seen.format_map(_Sayings(self.asked, names))
        cures = ", or ".join(self._cures(names))
        return f"{seen}; use {cures}" if cures else seen

    def _cures(self, names: Names) -> Iterator[str]:
        for number, offer in enumerate(self.offers):
            is_subject = self.rule.seen.startswith(f"{{{offer.name}}}")
            text = _listed(offer.values) if is_subject and not number else _named(offer, names)
            along = " and ".join(names.said(name, value) for name, value in offer.along.items())
            yield f"{text} with {along}" if along else text


BARE = Names()


def problems(asked: Asked, rules: Sequence[Rule] = RULES, names: Names = BARE) -> Iterator[str]:
    """One sentence for each rule that is broken, in the order of the book."""
    return (problem.text(names) for problem in judge(asked, rules))


def judge(asked: Asked, rules: Sequence[Rule] = RULES) -> Iterator[Problem]:
    """Cost: microseconds a rule; cures are looked for where one is broken."""
    for rule in broken_rules(asked, rules):
        yield Problem(asked=asked, rule=rule, offers=_offers(asked, rule, rules))


def broken_rules(asked: Asked, rules: Sequence[Rule] = RULES) -> list[Rule]:
    return [rule for rule in rules if _is_broken(asked, rule)]


def shown(value: object) -> str:
    """A value as a job file writes it, but for the quotes of a text."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(shown, value))}]"
        case _:
            return str(value)


class _Sayings:
    """The values in a rule's sentence, by name."""

    def __init__(self, asked: Asked, names: Names) -> None:
        self._asked = asked
        self._names = names

    def __getitem__(self, name: str) -> "_Said":
        value: Value = getattr(self._asked, name)
        return _Said(value=value, whole=self._names.said(name, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A value in a rule's sentence; the format says how much of it is said."""

    value: Value
    whole: str

    def __format__(self, how: str) -> str:
        if not how:
            return self.whole
        if how == "value":
            return shown(self.value)
        assert isinstance(self.value, int), how
        return how.replace("#", self.whole) if self.value > 1 else ""


def _is_broken(asked: Asked, rule: Rule) -> bool:
    values = [getattr(asked, name) for name in rule.of]
    return None not in values and rule.broken(*values)


def _offers(asked: Asked, rule: Rule, rules: Sequence[Rule]) -> tuple[Offer, ...]:
    found = [(cure.name, _mending(asked, rule, cure, rules)) for cure in rule.cures]
    offers = tuple(Offer(name=name, values=values) for name, values in found if values)
    return offers or _together(asked, rule, rules)


def _mending(asked: Asked, rule: Rule, cure: Cure, rules: Sequence[Rule]) -> Sequence[Value]:
    """The candidates that mend this rule, break no other, and leave the fewest broken."""
    candidates = cure.candidates(asked)
    now = set(broken_rules(asked, rules))
    left: dict[Value, int] = {}
    for value in _ends(candidates):
        after = set(broken_rules(_changed(asked, cure.name, value), rules))
        if rule not in after and after < now:
            left[value] = len(after)
    if isinstance(candidates, range) and len(left) == len(_ends(candidates)) > 1:
        return candidates
    return [value for value, num_broken in left.items() if num_broken == min(left.values())]


def _together(asked: Asked, rule: Rule, rules: Sequence[Rule]) -> tuple[Offer, ...]:
    """The fewest changes of several keys that mend this rule and break no other."""
    may_stay = [other for other in broken_rules(asked, rules) if other is not rule]
    for most in range(2, MOST_CHANGES + 1):
        if changes := _changes(asked, rule, may_stay, rules, most):
            (name, value), *others = changes.items()
            return (Offer(name=name, values=[value], along=dict(others)),)
    return ()


def _changes(
    asked: Asked, rule: Rule, may_stay: list[Rule], rules: Sequence[Rule], most: int
) -> dict[str, Value] | None:
    """At most so many changes, of `rule` first, until none but these are broken."""
    if not most:
        return None
    for cure in rule.cures:
        for value in _ends(cure.candidates(asked)):
            change = {cure.name: value}
            changed = _changed(asked, cure.name, value)
            left = [other for other in broken_rules(changed, rules) if other not in may_stay]
            if not left:
                return change
            more = None if rule in left else _changes(changed, left[0], may_stay, rules, most - 1)
            if more and cure.name not in more:
                return change | more
    return None


def _changed(asked: Asked, name: str, value: Any) -> Asked:
    return replace(asked, **{name: value})


def _ends(candidates: Sequence[Value]) -> Sequence[Value]:
    """Those to try: of a range, all of which stand or fall with its ends, these."""
    if isinstance(candidates, range):
        return sorted({candidates[0], candidates[-1]}) if candidates else []
    return candidates


def _named(offer: Offer, names: Names) -> str:
    if len(offer.values) == 1:
        return names.said(offer.name, offer.values[0])
    return f"{_listed(offer.values)} as {names.name(offer.name)}"


def _listed(values: Sequence[Value]) -> str:
    if isinstance(values, range):
        return f"at most {values[-1]}" if values[0] == 1 else f"{values[0]} to {values[-1]}"
    texts = [shown(value) for value in values]
    return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"
