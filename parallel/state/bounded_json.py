"""JSON from a file that anybody may have written: parsed within bounds of size, count and depth."""

import json
from typing import Any


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
