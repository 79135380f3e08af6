"""What pydantic found wrong with a job file, as one line that names the key and the cure."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from remesh.orchestrator.job.foreign_words import meant_by
from remesh.orchestrator.job.overrides import cure
from remesh.orchestrator.user_text import masked

MAX_SHOWN = 60
EXAMPLES = {
    "data.skip": '["30..35"]',
    "parallel.layers": "[3, 5]",
    "elastic.pp": "[4, 2, 1]",
    "elastic.tp": "[2, 1]",
    "elastic.cp": "[2, 1]",
    "elastic.ep": "[2, 1]",
}
TABLE_ERRORS = ("model_type", "model_attributes_type", "dict_type")
WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "string_pattern_mismatch": "1 to 64 letters, digits, . _ or -, the first a letter or digit",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
}


def first_problem(
    error: ValidationError, schema: type[BaseModel], overrides: Sequence[str] = ()
) -> str:
    """The line for the user. An unknown key comes first: it explains the one that is missing."""
    details = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
    unknown = [item for item in details if item["type"] == "extra_forbidden"]
    chosen = (unknown or details)[0]
    key = _key(chosen)
    same_key = [item for item in details if _key(item) == key]
    kinds = [item["type"] for item in same_key]
    written = cure(key, kinds, overrides) or _example(key, chosen["type"])
    return _text(chosen, same_key, schema) + written


def _text(chosen: ErrorDetails, same_key: Sequence[ErrorDetails], schema: type[BaseModel]) -> str:
    key = _key(chosen)
    match chosen["type"]:
        case "value_error":
            seen = f"{key} = {_shown(chosen['input'])} " if "." in key else ""
            return f"{seen}{chosen['ctx']['error']}"
        case "extra_forbidden":
            return f"{key}: unknown {'key' if '.' in key else 'table'}; {_nearest(key, schema)}"
        case "missing" if "." not in key:
            return f"the table [{key}] is missing; it needs {_required(key, schema)}"
        case "missing":
            return f"{key} is missing"
        case kind if kind in TABLE_ERRORS:
            return f"{key} = {_shown(chosen['input'])}: expected a table, [{key}]"
        case _:
            wanted = " or ".join(dict.fromkeys(_wanted(item) for item in same_key))
            return f"{key} = {_shown(chosen['input'])}: expected {wanted}"


def _example(key: str, kind: str) -> str:
    """How the file says a list."""
    return f", such as {EXAMPLES[key]}" if kind == "tuple_type" and key in EXAMPLES else ""


def _key(item: ErrorDetails) -> str:
    """Table and key; deeper places (a branch of a union, an entry of a list) belong to the key."""
    return ".".join(str(part) for part in item["loc"][:2])


def _wanted(item: ErrorDetails) -> str:
    template = WANTED.get(item["type"])
    if template is None:
        return item["msg"].removeprefix("Input should be ")
    return template.format(**item.get("ctx", {})).replace("'", '"')


def _shown(value: Any) -> str:
    """The value roughly as the file writes it, cut where it is long."""
    text = masked(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _nearest(key: str, schema: type[BaseModel]) -> str:
    """The key that was probably meant: known by another word, similar, of that name elsewhere."""
    tables = {name: _fields(name, schema) for name in schema.model_fields}
    table, _, field = key.partition(".")
    if meant := meant_by(field or table):
        return meant
    if not field:
        return _nearest_table(table, tables)
    near = difflib.get_close_matches(field, tables[table], n=1)
    if near:
        return f"did you mean {table}.{near[0]}?"
    elsewhere = [f"{name}.{field}" for name, fields in tables.items() if field in fields]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    if field in tables:
        return f"did you mean the table [{field}]?"
    return f"[{table}] has {', '.join(tables[table])}"


def _nearest_table(name: str, tables: Mapping[str, Mapping[str, bool]]) -> str:
    """Of a table that is unknown, or of a key that stands in front of all tables."""
    if near := difflib.get_close_matches(name, tables, n=1):
        return f"did you mean [{near[0]}]?"
    owners = [table for table, fields in tables.items() if name in fields]
    if owners:
        return f"did you mean {owners[0]}.{name}?"
    return f"the tables are {', '.join(tables)}"


def _fields(table: str, schema: type[BaseModel]) -> dict[str, bool]:
    """The keys of a table, and whether each is required."""
    annotation = schema.model_fields[table].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return {name: field.is_required() for name, field in annotation.model_fields.items()}


def _required(table: str, schema: type[BaseModel]) -> str:
    return ", ".join(name for name, required in _fields(table, schema).items() if required)
