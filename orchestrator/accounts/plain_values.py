"""Values for readers of JSON, which has no word for a number that is not finite: null."""

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The same, with lists for tuples and None for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(held) for held in value]
    return value
