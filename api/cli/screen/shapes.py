"""Plain JSON values shown by shape and not by key: a value is a line, a list of tables is a table.

Keys stand as they are, since they are keys of the job file or of the JSON that a program reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remesh.cli.screen.said import NOT_FINITE, dated_text, iso_text, moment_text

SENTENCE = "reason"
MEASURED = ("loss", "grad_norm")  # of a step that was done: null for what is not finite
MOMENT_S = 1e9  # seconds above this count from 1970: they are a moment, not a duration
SUFFIX = "_s"


def show_values(console: Console, values: Mapping[str, Any]) -> None:
    tables = {key: value for key, value in values.items() if _is_table(value)}
    width = max((len(key) for key in values if key not in tables), default=0)
    for key, value in values.items():
        if key not in tables:
            _print(console, f"{key:<{width}}  {_cell(key, value)}")
    for key, rows in tables.items():
        console.print(_table(key, rows))


def event_sentence(event: Mapping[str, Any], now_s: float) -> tuple[str, str]:
    """The moment of an event and what it says; all but a sentence has its key.

    Tracebacks are for `--json` and `remesh logs`.
    """
    moment = next((value for key, value in event.items() if _is_moment(key, value)), None)
    rest = [
        (key, value)
        for key, value in event.items()
        if key != "traceback" and not _is_moment(key, value)
    ]
    said = "  ".join(
        _cell(key, value) if key == "text" else f"{key}={_cell(key, value)}" for key, value in rest
    )
    return "" if moment is None else moment_text(moment, now_s), said


def with_dates(value: Any) -> Any:
    """The same, with a date and a zone beside each moment: "at" beside "at_s"."""
    if isinstance(value, Mapping):
        found = {}
        for key, held in value.items():
            found[key] = with_dates(held)
            if _is_moment(key, held) and key.removesuffix(SUFFIX) not in value:
                found[key.removesuffix(SUFFIX)] = iso_text(held)
        return found
    return [with_dates(held) for held in value] if isinstance(value, (list, tuple)) else value


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    columns = _columns(rows)
    for key in columns:
        table.add_column(key, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(key, row.get(key))) for key in columns))
    return table


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What fits beside each other: no values that are tables of their own, the sentence last."""
    keys = dict.fromkeys(key for row in rows for key in row)
    flat = [key for key in keys if not any(isinstance(row.get(key), dict) for row in rows)]
    return sorted(flat, key=lambda key: key == SENTENCE)


def _cell(key: str, value: Any) -> str:  # noqa: PLR0911 - a line for each shape
    match value:
        case None if key in MEASURED:
            return NOT_FINITE
        case None | "" | []:
            return "-"
        case float() if _is_moment(key, value):
            return dated_text(value)
        case float():
            return f"{value:.5g}"
        case list() if _is_table(value):
            return str(len(value))
        case list():
            return ", ".join(_cell(key, item) for item in value)
        case dict():
            return " ".join(f"{name}={_cell(name, item)}" for name, item in value.items())
        case _:
            return str(value)


def _is_moment(key: str, value: Any) -> bool:
    return key.endswith(SUFFIX) and isinstance(value, float) and value > MOMENT_S


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
