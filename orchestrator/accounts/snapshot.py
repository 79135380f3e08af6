"""The state of a machine and its tally as plain JSON values, and back again, exactly.

Replaying the journal gives both as well; a snapshot in it bounds what has to be replayed. The codec
knows only the classes that the two are made of, found by their annotations: a snapshot can name
nothing else. One that another version has written may not fit; then the journal is replayed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control.memory.state import State

_COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset, "list": list}


class SnapshotError(ValueError):
    """These values are no snapshot that this version can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    state: State
    tally: Tally


def encode(snapshot: Snapshot) -> Any:
    """Cost: about 20 us a worker and generation."""
    return _encode(snapshot)


def decode(values: Any) -> Snapshot:
    """Raises: SnapshotError."""
    try:
        decoded = _decode(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"not a snapshot of this version: {error!r}") from error
    if not isinstance(decoded, Snapshot):
        raise SnapshotError(f"not a snapshot but {type(decoded).__name__}")
    return decoded


def _encode(value: Any) -> Any:
    if isinstance(value, Enum):
        return {"is": type(value).__name__, "of": value.value}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {"is": "dict", "of": [[_encode(key), _encode(held)] for key, held in value.items()]}
    if isinstance(value, deque):
        return {"is": "deque", "of": [_encode(held) for held in value], "maxlen": value.maxlen}
    name = type(value).__name__
    if name in _COLLECTIONS:
        return {"is": name, "of": [_encode(held) for held in value]}
    return {"is": name, "of": {key: _encode(getattr(value, key)) for key in _keys(value.__class__)}}


@cache
def _keys(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name, held = value["is"], value["of"]
    if name == "dict":
        return {_decode(key): _decode(item) for key, item in held}
    if name == "deque":
        return deque((_decode(item) for item in held), maxlen=value["maxlen"])
    if name in _COLLECTIONS:
        return _COLLECTIONS[name](_decode(item) for item in held)
    kind = _KINDS[name]
    if issubclass(kind, Enum):
        return kind(held)
    if tuple(held) != _keys(kind):  # another version's, whose defaults may not be the truth
        raise SnapshotError(f"{name} with {', '.join(held)}")
    return kind(**{key: _decode(item) for key, item in held.items()})


def _classes(hint: Any, seen: set[Any]) -> Iterator[type]:
    """The dataclasses and enums that values of this type may hold."""
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Enum)):
        if hint in seen:
            return
        seen.add(hint)
        yield hint
        inner = () if issubclass(hint, Enum) else tuple(get_type_hints(hint).values())
    else:
        inner = get_args(hint)
    for one in inner:
        yield from _classes(one, seen)


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in _classes(Snapshot, set())}
