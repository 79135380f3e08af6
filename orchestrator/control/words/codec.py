"""Values as plain JSON and back, exactly, driven by their annotations.

The one codec of events, commands, options, journals, snapshots and the vaults' wire. A dataclass is
an object of all its fields; where several may stand, the object says which by the class's name.
Nothing is left out and nothing is passed over: what can be read is said by the version of a format,
never by a missing key. The annotations are all that it knows, so a value can name no other class,
and two classes of one name in one place are an error at once. What lost: to find the class of a
value by the name of its field, which breaks on the next event that uses a name anew.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from remesh.orchestrator.control.words.codec_plans import (
    PLAIN,
    SHOWN,
    CodecError,
    Plan,
    members,
    named,
    pairs,
    queued,
    row,
    series,
    shown,
    wrong,
)

CLASS = "is"  # a word of Python: no field can have this name

_NUMBERS = (int, float)


def encode(hint: Any, value: Any) -> Any:
    """`value` in JSON. Cost: linear. Raises: CodecError if it is not of this annotation."""
    try:
        return plan_of(hint).put(value)
    except CodecError as error:
        raise error.within(type(value).__name__) from None


def decode(hint: Any, values: Any) -> Any:
    """The value of this annotation. Cost: linear. Raises: CodecError that names the place."""
    try:
        return plan_of(hint).take(values)
    except CodecError as error:
        told = str(values.get(CLASS)) if isinstance(values, dict) else ""
        known = {getattr(one, "__name__", "") for one in get_args(hint)}
        raise error.within(told if told in known else getattr(hint, "__name__", "")) from None


@cache
def plan_of(hint: Any) -> Plan:
    """Raises: TypeError for an annotation that does not say what its values are in JSON."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return _union([plan_of(one) for one in inner])
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        return _class(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return members(kind)
    if not inner:
        raise TypeError(f"{hint!r} does not say what its values are in JSON")
    return _collection(kind, inner)


def _collection(kind: Any, inner: Sequence[Any]) -> Plan:
    plans = [plan_of(one) for one in inner if one is not ...]
    if kind is tuple and inner[1:] != (...,):
        return row(plans)
    if kind in (tuple, list, set, frozenset):
        return series(kind, plans[0])
    if kind is deque:
        return queued(plans[0])
    if kind in (dict, Mapping):
        return named(plans[1]) if inner[0] is str else pairs(*plans)
    raise TypeError(f"{kind!r} of {inner!r} does not say what its values are in JSON")


@cache
def fields_of(kind: Any) -> Mapping[str, Plan]:
    """Looked for at the first value, so that a class may hold others of itself."""
    hints = get_type_hints(kind)
    return {one.name: plan_of(hints[one.name]) for one in fields(kind)}


def _class(kind: Any) -> Plan:
    def put(value: Any) -> dict[str, Any]:
        known = fields_of(kind)
        if type(value) is not kind:
            raise wrong(kind.__name__, value)
        done = {}
        for name, plan in known.items():
            try:
                done[name] = plan.put(getattr(value, name))
            except CodecError as error:
                raise error.within(f".{name}") from None
        return done

    def take(values: Any) -> Any:
        if not isinstance(values, dict):
            raise wrong(kind.__name__, values)
        known = fields_of(kind)
        if values.keys() != known.keys():
            raise _other_keys(kind, values)
        given = {}
        for name, plan in known.items():
            try:
                given[name] = plan.take(values[name])
            except CodecError as error:
                raise error.within(f".{name}") from None
        return _made(kind, given)

    return Plan(kind=kind, looks=frozenset({dict}), text=kind.__name__, put=put, take=take)


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    try:
        return kind(**given)
    except ValueError as error:
        raise CodecError(f"it is no {kind.__name__}: {str(error)[: 2 * SHOWN]}") from None


def _other_keys(kind: Any, values: Mapping[str, Any]) -> CodecError:
    known = fields_of(kind)
    unknown = [key for key in values if key not in known]
    if unknown:
        return CodecError(f"{kind.__name__} has no {shown(unknown[0])}")
    missing = next(key for key in known if key not in values)
    return CodecError(f"{missing!r} of {kind.__name__} is missing")


def _union(plans: Sequence[Plan]) -> Plan:
    branches = _Branches.of(plans)
    looks = frozenset(look for plan in plans for look in plan.looks)
    return Plan(kind=Union, looks=looks, text=branches.text, put=branches.put, take=branches.take)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branches:
    """Which of several plans a value goes by: by its class, and in JSON by its look or its name."""

    classes: Mapping[str, Plan]
    by_kind: Mapping[type, Plan]
    by_look: Mapping[type, Plan]
    is_named: bool

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> Self:
        classes = [plan for plan in plans if is_dataclass(plan.kind)]
        others = [plan for plan in plans if plan not in classes]
        by_look = {look: plan for plan in others for look in plan.looks}
        if PLAIN[int] in others:
            by_look[int] = PLAIN[int]
        is_named = len(classes) + (dict in by_look) > 1
        _check_distinct(classes, others, by_look)
        if classes and not is_named:
            by_look[dict] = classes[0]
        return cls(
            classes={plan.kind.__name__: plan for plan in classes},
            by_kind={plan.kind: plan for plan in plans},
            by_look=by_look,
            is_named=is_named,
        )

    @property
    def text(self) -> str:
        text = " or ".join(plan.text for plan in self.by_kind.values())
        return text if len(text) <= SHOWN else f"one of {len(self.by_kind)}, {text[:SHOWN]}..."

    def put(self, value: Any) -> Any:
        plan = self.by_kind.get(type(value)) or self._of_parent(value)
        if plan is None:
            raise wrong(self.text, value)
        if self.is_named and is_dataclass(plan.kind):
            return {CLASS: plan.text, **plan.put(value)}
        return plan.put(value)

    def take(self, values: Any) -> Any:
        if self.is_named and isinstance(values, dict) and CLASS in values:
            return self._named(values)
        if plan := self.by_look.get(type(values)):
            return plan.take(values)
        raise wrong(self.text, values)

    def _named(self, values: Mapping[str, Any]) -> Any:
        told = values[CLASS]
        if not isinstance(told, str) or told not in self.classes:
            raise wrong(self.text, told)
        return self.classes[told].take({key: values[key] for key in values if key != CLASS})

    def _of_parent(self, value: Any) -> Plan | None:
        """That of a class from which the value's is derived; a whole number may be a float."""
        if isinstance(value, int) and not isinstance(value, bool) and int not in self.by_kind:
            return self.by_kind.get(float)
        return next((plan for kind, plan in self.by_kind.items() if isinstance(value, kind)), None)


def _check_distinct(
    classes: Sequence[Plan], others: Sequence[Plan], by_look: Mapping[type, Plan]
) -> None:
    """Raises: TypeError where JSON would not say which of these a value is."""
    names = {plan.kind.__name__ for plan in classes}
    looks = sum(len(plan.looks) for plan in others) - all(PLAIN[one] in others for one in _NUMBERS)
    texts = any(dict in plan.looks and plan.kind is dict for plan in others)
    if (
        len(names) < len(classes)
        or len(by_look) < looks
        or (names and texts)
        or PLAIN[Any] in others
    ):
        choices = ", ".join(plan.text for plan in (*classes, *others))
        raise TypeError(f"in JSON there would be no telling which of these it is: {choices}")
