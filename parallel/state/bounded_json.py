"""What anybody may have written: JSON parsed within bounds, and values told within bounds.

Each file of ours says in which version of its format it is written; this version reads its own.
"""

import json
import reprlib
from typing import Any

FORMAT_KEY = "format_version"
_LONGEST = 200  # characters of what is told of a value or an error

_TELLER = reprlib.Repr()
_TELLER.maxstring = _TELLER.maxother = 80
_TELLER.maxlong = 40
_TELLER.maxlevel = 2


def parse(encoded: bytes, *, max_bytes: int, max_values: int) -> Any:
    """The values. What they may take in memory is bounded before the first of them is made.

    A key that stands twice in one object is refused: others may read the one that is not read here.

    Raises: ValueError with the reason.
    """
    if len(encoded) > max_bytes:
        raise ValueError(f"more than the {max_bytes} bytes allowed")
    # Each value but the first stands behind one of these; text may hold some more of them.
    if sum(encoded.count(mark) for mark in (b",", b"[", b"{")) > max_values:
        raise ValueError(f"more than the {max_values} values allowed")
    try:
        return json.loads(encoded, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def check_format(values: Any, reads: int) -> None:
    """Raises: ValueError that names both versions, unless these values are of the one it reads."""
    found = values.get(FORMAT_KEY) if isinstance(values, dict) else None
    if type(found) is not int or found != reads:
        told = "none, as those of 0.1" if found is None else f"{found!r}"[:20]
        raise ValueError(f"it has {FORMAT_KEY} {told}, this Remesh reads {reads}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise ValueError(f"{shown(doubled)} stands twice in it")
    return found


def shown(value: Any) -> str:
    """A value in an error message: in a few printable characters, whatever it is."""
    return brief(_TELLER.repr(value))


def brief(text: object) -> str:
    """A text or an error as part of a message: printable, its middle left out where it is long."""
    whole = str(text)
    half = _LONGEST // 2
    cut = whole if len(whole) <= _LONGEST else f"{whole[:half]}...{whole[-half:]}"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)
