"""What a pickle says, as plain data: its instructions are taken apart, and none is carried out.

A pickle is a program. To load one is to run it: it may import anything and call anything, and this
is never done here, for no file. But the table of contents of a torch distributed checkpoint exists
as a pickle only, so that an import has to learn from one where the tensors lie. pickletools splits
it into instructions without acting on them, and what they would build is written down: a class or
a function becomes its name, a call becomes a record of what would have been called with what. No
name is ever looked up, and one that is not on the caller's list is an error on sight.

pickle.Unpickler with a list of names for `find_class` would be shorter, but it does call what is on
the list, and runs whatever `__reduce__` and `__setstate__` of these classes do with hostile values.
"""

import pickletools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from remesh.parallel.files.nesting import Nesting
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.bounded_json import brief

# Of the values in one, for each byte: a mention of what is there takes two, and is mostly small.
_VALUES_A_BYTE = 16


@dataclass(frozen=True, slots=True)
class Named:
    """A class, function or constant: its name, and nothing behind it."""

    name: str


@dataclass(slots=True)
class Made:
    """What a call of `what` would have made. A dict is one of these too, of `what` = "dict"."""

    what: str
    args: tuple[Any, ...] = field(default=(), repr=False)
    state: Any = field(default=None, repr=False)
    pairs: list[tuple[Any, Any]] = field(default_factory=list, repr=False)

    def value(self, key: str) -> Any:
        """The value of a dict for this key. Raises: KeyError."""
        for other, value in self.pairs:
            if isinstance(other, str) and other == key:
                return value
        raise KeyError(key)


def plain_data(encoded: bytes, allowed: Collection[str]) -> Any:
    """What the pickle describes: no value is nested deeply, and all can be walked through.

    Cost: as long as the pickle, whatever it says; so is a walk through its values.
    Raises: CheckpointError if it names anything that is not `allowed`, or is no pickle of data.
    """
    try:
        return _Notes(allowed, Nesting(_VALUES_A_BYTE * len(encoded))).of(encoded)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"no pickle of plain data ({brief(error)})") from None


class _Notes:
    """A stack as a pickle fills it, of notes instead of objects."""

    def __init__(self, allowed: Collection[str], nesting: Nesting) -> None:
        self._allowed = allowed
        self._nesting = nesting
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def of(self, encoded: bytes) -> Any:
        for opcode, arg, _ in pickletools.genops(encoded):
            if opcode.name == "STOP":
                return self._stack.pop()
            if opcode.name in _VALUES:
                self._stack.append(arg)
            elif opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name])
            elif opcode.name in _ACTIONS:
                _ACTIONS[opcode.name](self, arg)
            elif opcode.name not in ("PROTO", "FRAME"):
                raise ValueError(f"it has the instruction {opcode.name}")
        raise ValueError("it has no end")

    def mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def empty_list(self, _: Any) -> None:
        self._push([])

    def empty_dict(self, _: Any) -> None:
        self._push(Made("dict"), [])

    def tuple_(self, _: Any) -> None:
        self._push(tuple(self._since_mark()))

    def short_tuple(self, size: int) -> None:
        items = [self._stack.pop() for _ in range(size)]
        self._push(tuple(reversed(items)))

    def append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_items(self, _: Any) -> None:
        self._set(self._since_mark())

    def name(self, arg: str) -> None:
        self._name(*arg.split(" ", 1))

    def stack_name(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._name(module, name)

    def call(self, _: Any) -> None:
        args, what = self._stack.pop(), self._stack.pop()
        if not isinstance(args, tuple):
            raise TypeError("it calls something with what is no tuple")
        self._push(Made(_called(what), args), args)

    def persistent(self, _: Any) -> None:
        args = (self._stack.pop(),)
        self._push(Made("persistent", args), args)

    def build(self, _: Any) -> None:
        state = self._stack.pop()
        if not isinstance(self._stack[-1], Made):
            raise TypeError("it gives a state to what is no object")
        self._nesting.put(self._stack[-1], [state])
        self._stack[-1].state = state

    def put(self, place: int | None) -> None:
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def _push(self, container: Any, items: Sequence[Any] | None = None) -> None:
        self._nesting.put(container, container if items is None else items)
        self._stack.append(container)

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("it appends to what is no list")
        self._nesting.put(self._stack[-1], items)
        self._stack[-1].extend(items)

    def _set(self, flat: list[Any]) -> None:
        if not isinstance(self._stack[-1], Made):
            raise TypeError("it sets keys of what is no dict")
        self._nesting.put(self._stack[-1], flat)
        self._stack[-1].pairs.extend(zip(flat[::2], flat[1::2], strict=True))

    def _name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("it names something by what is no text")
        full = f"{module}.{name}"
        if full not in self._allowed:
            raise CheckpointError(
                f"it names {brief(full)}, which no file of this kind needs; nothing of it was "
                "run. Do not load it anywhere"
            )
        self._stack.append(Named(full))


def _called(what: Any) -> str:
    if not isinstance(what, Named):
        raise TypeError("it calls what is no name")
    return what.name


_VALUES = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_ACTIONS: dict[str, Callable[[_Notes, Any], None]] = {
    "MARK": _Notes.mark,
    "EMPTY_LIST": _Notes.empty_list,
    "EMPTY_DICT": _Notes.empty_dict,
    "TUPLE": _Notes.tuple_,
    "TUPLE1": lambda notes, _: notes.short_tuple(1),
    "TUPLE2": lambda notes, _: notes.short_tuple(2),
    "TUPLE3": lambda notes, _: notes.short_tuple(3),
    "APPEND": _Notes.append,
    "APPENDS": _Notes.appends,
    "SETITEM": _Notes.set_item,
    "SETITEMS": _Notes.set_items,
    "GLOBAL": _Notes.name,
    "STACK_GLOBAL": _Notes.stack_name,
    "REDUCE": _Notes.call,
    "NEWOBJ": _Notes.call,
    "BINPERSID": _Notes.persistent,
    "BUILD": _Notes.build,
    "BINPUT": _Notes.put,
    "LONG_BINPUT": _Notes.put,
    "MEMOIZE": _Notes.put,
    "BINGET": _Notes.get,
    "LONG_BINGET": _Notes.get,
}
