"""JSON from a file that anybody may have written: parsed within bounds of size, count and depth.

Each file of ours says in which version of its format it is written; this version reads its own.
"""

import json
from typing import Any

FORMAT_KEY = "format_version"


def parse(encoded: bytes, *, max_bytes: int, max_values: int) -> Any:
    """The values. What they may take in memory is bounded before the first of them is made.

    Raises: ValueError with the reason.
    """
    if len(encoded) > max_bytes:
        raise ValueError(f"more than the {max_bytes} bytes allowed")
    # Each value but the first stands behind one of these; text may hold some more of them.
    if sum(encoded.count(mark) for mark in (b",", b"[", b"{")) > max_values:
        raise ValueError(f"more than the {max_values} values allowed")
    try:
        return json.loads(encoded)
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
