"""`--set TABLE.KEY=VALUE`: values of a job file that stand on the command line."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import masked

_BOOLS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false"}
_LISTS_OF_NUMBERS = frozenset(
    {"parallel.layers", "elastic.pp", "elastic.tp", "elastic.cp", "elastic.ep"}
)
_NUMBER = re.compile(r"[+-]?(\d[\d,_]*\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def put(tables: dict[str, Any], assignment: str) -> str:
    """Puts `table.key=value` into `tables`; gives the key. Raises: UserError."""
    key, text = _parted(assignment)
    table, _, field = key.partition(".")
    place = tables.setdefault(table, {})
    if isinstance(place, dict):
        place[field] = toml_value(text)
    return key


def toml_value(text: str) -> Any:
    """The text as a TOML value; as it stands where it is none."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def cure(key: str, kinds: Sequence[str], overrides: Sequence[str]) -> str:
    """How to write the override of a key that is of another kind; empty if that is not to be known.

    `kinds` are pydantic's names for what was expected.
    """
    texts = [text for name, text in map(_parted, overrides) if name == key]
    for kind in kinds if texts else ():
        if written := _written_list(key, kind, texts[-1]) or _written(kind, texts[-1]):
            assignment = f"{key}={written}"
            quoted = f"'{assignment}'" if '"' in assignment else assignment
            return f"; write it as --set {quoted}"
    return ""


def _parted(assignment: str) -> tuple[str, str]:
    """Key and value of an assignment. Raises: UserError if it is none."""
    key, equals, text = assignment.partition("=")
    table, dot, field = key.strip().partition(".")
    if not (equals and dot and table and field):
        raise UserError(
            f"--set {masked(assignment)}: expected TABLE.KEY=VALUE, such as train.steps=100"
        )
    return f"{table}.{field}", text.strip()


def _written_list(key: str, kind: str, text: str) -> str | None:
    """One of numbers, None if it is none."""
    numbers = re.split(r"[\s,;/+-]+", text)
    if kind != "tuple_type" or key not in _LISTS_OF_NUMBERS:
        return None
    return f"[{','.join(numbers)}]" if all(map(str.isdecimal, numbers)) else None


def _written(kind: str, text: str) -> str | None:
    if any(mark in text for mark in "\"'\\") or not text.isprintable():
        return None
    match kind:
        case "string_type" if "[" not in text:
            return f'"{text}"'
        case "tuple_type" if not text.startswith(("[", "{")):
            return f'["{text}"]'
        case "bool_type":
            return _BOOLS.get(text.lower())
        case "int_type" | "int_from_float" | "float_type" if _NUMBER.fullmatch(text):
            return _number(kind, text)
        case _:
            return None


def _number(kind: str, text: str) -> str | None:
    number = float(text.replace(",", ""))
    if kind == "float_type":
        return repr(number)
    return str(int(number)) if number.is_integer() else None
