"""`remesh status` and `remesh events`: a run as its controller or its journal tells it.

Both are plain JSON values, shown by shape and not by key: a value is a line, a list of tables is a
table. What the controller learns to tell is so shown without a change here.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError

RUNS = Path("runs")
SENTENCE = "reason"
MEASURED = ("loss", "grad_norm")  # of a step that was done: null for what is not finite
MOMENT_S = 1e9  # seconds above this count from 1970: they are a moment, not a duration


def run_dir_of(target: Path | None) -> Path:
    """The folder of a run: named by itself or by its job file, else the newest one under runs/.

    Raises: UserError if there is none.
    """
    if target is None:
        return _newest_run(RUNS)
    if target.is_file():
        return _run_dir_of_job(target)
    if not target.is_dir():
        raise UserError(
            f"{target.absolute()}: no such run; name its folder, such as runs/tiny, or a job file"
        )
    return target


def show_status(console: Console, status: Mapping[str, Any]) -> None:
    tables = {key: value for key, value in status.items() if _is_table(value)}
    width = max((len(_words(key)) for key in status if key not in tables), default=0)
    for key, value in status.items():
        if key not in tables:
            _print(console, f"{_words(key):<{width}}  {_cell(key, value)}")
    for key, rows in tables.items():
        console.print(_table(_words(key), rows))


def show_events(console: Console, events: Iterable[Mapping[str, Any]]) -> None:
    """A line for each event. A moment and a sentence speak for themselves, all else has its key.

    Tracebacks are for `--json` and `remesh logs`.
    """
    for event in events:
        parts = (_part(key, value) for key, value in event.items() if key != "traceback")
        _print(console, "  ".join(parts))


def print_json(value: Any) -> None:
    """One JSON value on standard output, for a program to read."""
    print(json.dumps(value, indent=1))  # noqa: T201 - neither wrapped nor coloured


def _run_dir_of_job(job: Path) -> Path:
    folder = load_job(job).run_dir
    if folder.is_dir():
        return folder
    counts = "" if folder.is_absolute() else f"; {folder} counts from the working directory"
    raise UserError(
        f"{folder.absolute()}: there is no run here{counts}; name the run's folder, or start one "
        f"with: remesh run {job}"
    )


def _newest_run(folder: Path) -> Path:
    marks = [mark for name in ("run.json", "journal*") for mark in folder.glob(f"*/{name}")]
    if not marks:
        raise UserError(f"there is no run in {folder}/; name a run's folder or its job file")
    return max(marks, key=lambda mark: mark.stat().st_mtime).parent


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    columns = _columns(rows)
    for key in columns:
        table.add_column(_words(key), overflow="fold", no_wrap=key != SENTENCE)
    for row in rows:
        table.add_row(*(escape(_cell(key, row.get(key))) for key in columns))
    return table


def _part(key: str, value: Any) -> str:
    bare = key == "text" or _is_moment(key, value)
    return _cell(key, value) if bare else f"{_words(key)}={_cell(key, value)}"


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What fits beside each other: no values that are tables of their own, the sentence last."""
    keys = dict.fromkeys(key for row in rows for key in row)
    flat = [key for key in keys if not any(isinstance(row.get(key), dict) for row in rows)]
    return sorted(flat, key=lambda key: key == SENTENCE)


def _cell(key: str, value: Any) -> str:  # noqa: PLR0911 - a line for each shape
    match value:
        case None if key in MEASURED:
            return "not finite"
        case None | "" | []:
            return "-"
        case float() if _is_moment(key, value):
            return time.strftime("%H:%M:%S", time.localtime(value))
        case float():
            return f"{value:.5g}"
        case list() if _is_table(value):
            return str(len(value))
        case list():
            return ", ".join(_cell(key, item) for item in value)
        case dict():
            return " ".join(f"{_words(name)}={_cell(name, item)}" for name, item in value.items())
        case _:
            return str(value)


def _is_moment(key: str, value: Any) -> bool:
    return key.endswith("_s") and isinstance(value, float) and value > MOMENT_S


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _words(key: str) -> str:
    return key.replace("_", " ")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
