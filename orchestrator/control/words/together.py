"""Events of one kind that came together, as one JSON object: what they share once, the rest in
columns.

The ranks of a large mesh say the same thing within a second, and differ in their names. Nothing is
rounded or left out: each event comes back as it was. What lost: to compress the journal, which
nobody could read then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remesh.orchestrator.control.words.codec import CLASS, decode, fields_of
from remesh.orchestrator.control.words.codec_plans import CodecError, Plan, shown
from remesh.orchestrator.control.words.events import Event

_SPACE = " "


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """`same` is what each of the events has, its kind too; `each` has the values of a field for
    one after the other: a list, texts by what they start with and what follows it, or larger values
    once each, with which of them it is.
    """

    same: dict[str, Any]
    each: dict[str, Any]


def together(events: Sequence[Event]) -> Together | None:
    """None if nothing tells them apart. Cost: linear. Raises: CodecError."""
    kind: Any = type(events[0])
    same: dict[str, Any] = {CLASS: kind.__name__}
    each: dict[str, Any] = {}
    for name, plan in fields_of(kind).items():
        try:
            values = _encoded(plan, [getattr(event, name) for event in events])
        except CodecError as error:
            raise error.within(f"{kind.__name__}.{name}") from None
        if len(values) == 1:
            same[name] = values[0]
        else:
            each[name] = _packed(values)
    return Together(same=same, each=each) if each else None


def apart(there: Together) -> list[Event]:
    """The events again. Raises: CodecError if the columns do not fit each other."""
    columns = {name: _unpacked(name, column) for name, column in there.each.items()}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise CodecError(f"expected columns of one length, found {sorted(lengths)}", "each")
    return [
        decode(Event, {**there.same, **dict(zip(columns, row, strict=True))})
        for row in zip(*columns.values(), strict=True)
    ]


def _encoded(plan: Plan, values: Sequence[Any]) -> list[Any]:
    """Each value in JSON, or only one of them if all are alike to the last bit."""
    first = values[0]
    if all(value is first for value in values):
        return [plan.put(first)]
    found = [plan.put(value) for value in values]
    look = repr(found[0])  # which tells 1 from 1.0 and True, and 0.0 from -0.0
    return found[:1] if all(repr(value) == look for value in found) else found


def _packed(values: Sequence[Any]) -> Any:
    if any(isinstance(value, (list, dict)) for value in values):
        looks = [repr(value) for value in values]
        found = dict(zip(looks, values, strict=True))
        index = {look: number for number, look in enumerate(found)}
        return {"values": list(found.values()), "which": [index[look] for look in looks]}
    if not all(isinstance(value, str) and _SPACE not in value for value in values):
        return values
    start = _start_of(min(values), max(values))
    return {"start": start, "rest": _SPACE.join(value[len(start) :] for value in values)}


def _start_of(one: str, other: str) -> str:
    """What both start with, and so does every text that is sorted between them."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _unpacked(name: str, column: Any) -> Sequence[Any]:
    match column:
        case list():
            return column
        case {"values": list(values), "which": list(which)}:
            return [_picked(name, values, number) for number in which]
        case {"start": str(start), "rest": str(rest)}:
            return [start + text for text in rest.split(_SPACE)]
        case _:
            raise CodecError(f"expected a column, found {shown(column)}", f"each.{name}")


def _picked(name: str, values: Sequence[Any], number: Any) -> Any:
    if type(number) is not int or not 0 <= number < len(values):
        raise CodecError(f"expected one of {len(values)}, found {shown(number)}", f"each.{name}")
    return values[number]
