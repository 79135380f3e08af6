"""How deep and how large values are that are put into one another, told while they are made.

A pickle of a few bytes can describe a tuple of 2**60 elements, or one that is nested a million
times: whoever shows, hashes or compares such a value never ends, or crashes the interpreter. Here
each container is weighed when something is put into it, and what is in another one is closed: it
takes nothing any more. So what a container weighs is final, and none can hold itself. Pickles as
they are written keep to that order, except for values that do hold themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 64


@dataclass(slots=True)
class _Weighed:
    """`value` is kept, so that no other one gets its identity."""

    value: Any
    depth: int = 1
    size: int = 1
    is_closed: bool = False


class Nesting:
    """`max_size` bounds the values in one container, counted as often as they are mentioned."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._found: dict[int, _Weighed] = {}

    def put(self, container: Any, items: Iterable[Any]) -> None:
        """Weighs what is put into a container, a new one or one that has been weighed before.

        Raises: ValueError if it is too deep or too large, or is in another container already.
        """
        own = self._found.setdefault(id(container), _Weighed(container))
        for item in items:
            inner = self._found.get(id(item))
            own.size += inner.size if inner else 1
            if inner:
                inner.is_closed = True
                own.depth = max(own.depth, inner.depth + 1)
        if own.is_closed:
            raise ValueError("it changes what is in another value already")
        if own.depth > MAX_DEPTH:
            raise ValueError(f"its values are nested more than {MAX_DEPTH} deep")
        if own.size > self._max_size:
            raise ValueError(f"one of its values holds more than {self._max_size} values")
