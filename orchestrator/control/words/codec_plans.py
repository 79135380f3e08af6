"""How plain values, enums and collections look in JSON: the parts that the codec is made of.

A number that JSON cannot hold is an object, as a text would be taken for one where both may stand.
Collections are lists, but for a dict whose keys are texts; what would be lost is refused: a key or
a member that stands twice, a row of another length.
"""

import math
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any

SHOWN = 60  # characters of what was found

_NO_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class CodecError(ValueError):
    """A value is not what its annotation says: the place, what was expected, what was found."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem = problem
        self.place = place

    def within(self, place: str) -> "CodecError":
        return CodecError(self.problem, place + self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How values of one annotation are put into JSON and taken out of it.

    `kind` is the class of the values, `looks` are the classes that they have in JSON, `text` says
    what is expected.
    """

    kind: Any
    looks: frozenset[type]
    text: str
    put: Callable[[Any], Any]
    take: Callable[[Any], Any]


def wrong(expected: str, found: Any) -> CodecError:
    return CodecError(f"expected {expected}, found {shown(found)}")


def shown(found: Any) -> str:
    """On one line, however large it is."""
    text = reprlib.repr(found)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def as_it_is(value: Any) -> Any:
    return value


def plain(kind: type, made: Callable[[Any], Any] = as_it_is) -> Plan:
    """`made` makes one of those that are of a subclass, such as an enum."""
    text = "None" if kind is NoneType else kind.__name__

    def put(value: Any) -> Any:
        if type(value) is kind:
            return value
        if not isinstance(value, kind) or isinstance(value, bool):
            raise wrong(text, value)
        return made(value)

    def take(value: Any) -> Any:
        if type(value) is not kind:
            raise wrong(text, value)
        return value

    return Plan(kind=kind, looks=frozenset({kind}), text=text, put=put, take=take)


def _put_float(value: Any) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong("float", value)
    number = _number(value)
    return number if math.isfinite(number) else {"float": repr(number)}


def _take_float(value: Any) -> float:
    match value:
        case {"float": str(name)} if len(value) == 1 and name in _NO_NUMBERS:
            return _NO_NUMBERS[name]
        case float() if math.isfinite(value):
            return value
        case int() if not isinstance(value, bool):
            return _number(value)
        case _:
            raise wrong("float", value)


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise wrong("float", value) from None


PLAIN: Mapping[Any, Plan] = {
    NoneType: plain(NoneType),
    None: plain(NoneType),  # as dict[str, None] has it
    bool: plain(bool),
    int: plain(int, int.__int__),
    str: plain(str, str.__str__),
    float: Plan(
        kind=float,
        looks=frozenset({int, float, dict}),
        text="float",
        put=_put_float,
        take=_take_float,
    ),
    Any: Plan(kind=Any, looks=frozenset(), text="JSON", put=as_it_is, take=as_it_is),
}


def members(kind: type[Enum]) -> Plan:
    """The values of the members of an enum."""
    known = {member.value: member for member in kind}
    looks = frozenset(type(value) for value in known)

    def put(value: Any) -> Any:
        if type(value) is not kind:
            raise wrong(kind.__name__, value)
        return value.value

    def take(value: Any) -> Any:
        if type(value) not in looks or value not in known:
            raise wrong(kind.__name__, value)
        return known[value]

    return Plan(kind=kind, looks=looks, text=kind.__name__, put=put, take=take)


def series(kind: Any, item: Plan) -> Plan:
    """A tuple, list, set or frozenset of any length."""

    def put(value: Any) -> list[Any]:
        return each(item.put, expect(kind, value))

    def take(values: Any) -> Any:
        found = kind(each(item.take, expect(list, values)))
        if len(found) != len(values):
            raise CodecError(f"expected {kind.__name__}, found a member twice")
        return found

    return Plan(kind=kind, looks=frozenset({list}), text=kind.__name__, put=put, take=take)


def row(items: Sequence[Plan]) -> Plan:
    """A tuple of a fixed length."""
    text = f"tuple of {len(items)}"

    def run(way: str, values: Sequence[Any]) -> list[Any]:
        if len(values) != len(items):
            raise wrong(text, values)
        seats = zip(items, values, strict=True)
        return each(lambda seat: getattr(seat[0], way)(seat[1]), seats)

    return Plan(
        kind=tuple,
        looks=frozenset({list}),
        text=text,
        put=lambda value: run("put", expect(tuple, value)),
        take=lambda values: tuple(run("take", expect(list, values))),
    )


def queued(item: Plan) -> Plan:
    """A deque, whose annotation does not say how long it may grow."""
    longest = plain(int)

    def put(value: Any) -> dict[str, Any]:
        held = each(item.put, expect(deque, value))
        return {"maxlen": value.maxlen, "items": held}

    def take(values: Any) -> Any:
        match values:
            case {"maxlen": maxlen, "items": list(held)} if len(values) == 2:  # noqa: PLR2004
                bound = None if maxlen is None else longest.take(maxlen)
                if bound is not None and not len(held) <= bound:
                    raise CodecError(f"expected at most {bound}, found {len(held)}")
                return deque(each(item.take, held), maxlen=bound)
            case _:
                raise wrong("deque", values)

    return Plan(kind=deque, looks=frozenset({dict}), text="deque", put=put, take=take)


def named(held: Plan) -> Plan:
    """A dict whose keys are texts: an object."""
    key = PLAIN[str]

    def run(way: Callable[[Any], Any], on_key: Callable[[Any], Any], values: Any) -> dict[str, Any]:
        keys = [on_key(name) for name in values]
        return dict(zip(keys, each(way, values.values(), keys), strict=True))

    return Plan(
        kind=dict,
        looks=frozenset({dict}),
        text="dict",
        put=lambda value: run(held.put, key.put, expect(Mapping, value)),
        take=lambda values: run(held.take, key.take, expect(dict, values)),
    )


def pairs(key: Plan, held: Plan) -> Plan:
    """A dict with other keys: a list of pairs, in its order."""
    pair = row([key, held])

    def put(value: Any) -> list[Any]:
        return each(pair.put, expect(Mapping, value).items())

    def take(values: Any) -> dict[Any, Any]:
        found = dict(each(pair.take, expect(list, values)))
        if len(found) != len(values):
            raise CodecError("expected dict, found a key twice")
        return found

    return Plan(kind=dict, looks=frozenset({list}), text="dict", put=put, take=take)


def expect(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise wrong(kind.__name__, value)
    return value


def each(
    way: Callable[[Any], Any], values: Iterable[Any], keys: Sequence[Any] | None = None
) -> list[Any]:
    """Every value on its way; an error says which one, by its key or its number."""
    done: list[Any] = []
    try:
        for value in values:
            done.append(way(value))  # noqa: PERF401 - how many are done says where an error is
    except CodecError as error:
        place = len(done) if keys is None else shown(keys[len(done)])
        raise error.within(f"[{place}]") from None
    return done
