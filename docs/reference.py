"""Writes the pages of this folder that follow from the code: `make docs`."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic.fields import FieldInfo

from remesh.cli.main import app
from remesh.orchestrator.job.curve import AMENDABLE, KeyClass, class_of
from remesh.orchestrator.job.faults_on_order import KINDS, MOMENTS
from remesh.orchestrator.job.job import Job

FOLDER = Path(__file__).parent
WIDTH = 88
SHAPES = {
    KeyClass.CURVE: "the curve",
    KeyClass.COSINE: "the curve, of a cosine",
    KeyClass.BITS: "the bits",
    KeyClass.NEITHER: "neither",
}
# From what `Job.num_leaves` follows. The fingerprint holds the number and not these keys.
LEAVES = frozenset(
    {
        "train.global_batch",
        "train.microbatch",
        "parallel.dp",
        "parallel.tp",
        "parallel.pp",
        "parallel.cp",
        "parallel.ep",
        "zero.group",
        "elastic.max_workers",
        "elastic.pp",
        "elastic.tp",
        "elastic.cp",
        "elastic.ep",
        "elastic.same_bits",
    }
)
FAULTS = (
    "`remesh run --fault KIND@KEY=VALUE,KEY=VALUE` has a run of your own be struck, to see what it "
    "does about it: `--fault freeze@step=20,rank=1,operation=vote,for=2`. Each strikes once, where "
    "all that it names is so; a step or a generation is required, and without a rank it is the "
    "highest one; they count from 0 and stay below `elastic.max_workers`. Where what a fault names "
    "never comes to pass, it strikes nobody. "
    f"An operation is {', '.join(MOMENTS[:-1])} or {MOMENTS[-1]}. `--kill worker@20` "
    "is short for `--fault kill@step=20`, `--kill node@40` for `--fault kill-node@step=40`."
)
NUMBERS = {"integer": "whole number", "number": "number"}


def pages() -> dict[str, str]:
    """Each page by the name of its file."""
    return {"job-file.md": job_file(), "commands.md": commands()}


def job_file() -> str:
    lines = [
        "# The job file",
        "",
        "Made from `orchestrator/job/tables` by `make docs`. TOML; any key can be set on the",
        "command line as well: `--set train.steps=200`. A key that shapes the curve makes",
        "another run, unless it may change on the way: then the new value holds from the next step",
        "on. One that shapes the bits leaves the mathematics and rounds in another order. One of",
        "the leaves makes another run where another number of leaves follows, of which `remesh",
        "plan` tells; where as many follow it shapes the bits by the largest number of replicas.",
        "What lies in `data.dir` shapes the curve, and where that is does not.",
        "",
        "Editors complete and check a job file whose first line is `#:schema job.schema.json`,",
        "beside what `remesh schema > job.schema.json` writes.",
    ]
    schema = Job.model_json_schema()
    for table, field in Job.model_fields.items():
        kinds = _kinds(schema, table)
        lines += ["", f"## {table}", "", "| key | type | default | shapes | |"]
        lines.append("|---|---|---|---|---|")
        lines += [
            _row(f"{table}.{key}", kinds[key], found)
            for key, found in field.annotation.model_fields.items()
        ]
    return "\n".join(lines) + "\n"


def commands() -> str:
    lines = [
        "# Commands",
        "",
        "What `remesh COMMAND --help` says, put together by `make docs`.",
    ]
    for name, text in _helped(typer.main.get_command(app), "remesh"):
        lines += ["", f"## {name}", "", "```text", text.rstrip(), "```"]
    lines += ["", "## Faults on order", "", *_wrapped(FAULTS), ""]
    lines += ["| kind | | keys |", "|---|---|---|"]
    for kind, told in KINDS.items():
        lines.append(_cells(f"`{kind}`", told.says, ", ".join(sorted(told.takes))))
    return "\n".join(lines) + "\n"


def _row(key: str, kind: dict[str, Any], field: FieldInfo) -> str:
    said = " ".join((field.description or "").split())
    return _cells(f"`{key}`", _type(kind), _default(field), _shapes(key), said)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH + 10)


def _shapes(key: str) -> str:
    shapes = SHAPES[class_of(key)]
    if key in LEAVES:
        return "the leaves" if class_of(key) is KeyClass.NEITHER else f"{shapes} and the leaves"
    return f"{shapes}; may change on the way" if key in AMENDABLE else shapes


def _kinds(schema: dict[str, Any], table: str) -> dict[str, dict[str, Any]]:
    place = schema["properties"][table]
    name = (place.get("$ref") or place["allOf"][0]["$ref"]).rpartition("/")[2]
    kinds: dict[str, dict[str, Any]] = schema["$defs"][name]["properties"]
    return kinds


def _type(kind: dict[str, Any]) -> str:
    if "anyOf" in kind:
        return " or ".join(_type(one) for one in kind["anyOf"] if one.get("type") != "null")
    if "enum" in kind or "const" in kind:
        return " or ".join(f"`{json.dumps(one)}`" for one in kind.get("enum", [kind.get("const")]))
    if kind["type"] in NUMBERS:
        return f"{NUMBERS[kind['type']]}{_bounds(kind)}"
    if kind["type"] == "array":
        return f"list of {NUMBERS.get(kind['items']['type'], 'text')}s"
    return "true or false" if kind["type"] == "boolean" else "text"


def _bounds(kind: dict[str, Any]) -> str:
    """What follows a kind of number: the values that it may have."""
    low, high = kind.get("minimum"), kind.get("maximum")
    if "exclusiveMinimum" in kind:
        return f" above {kind['exclusiveMinimum']:g}"
    if "exclusiveMaximum" in kind:
        return f" from {low:g}, below {kind['exclusiveMaximum']:g}"
    return f", {low:g} or more" if high is None else f" from {low:,} to {high:,}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "follows"
    if field.default is None:
        return "none"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{json.dumps(value)}`"


def _helped(command: Any, name: str) -> Iterator[tuple[str, str]]:
    context = command.make_context(name, [], resilient_parsing=True)
    context.terminal_width = context.max_content_width = WIDTH
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command.get_help(context)
        return
    for part, found in inner.items():
        if not found.hidden:
            yield from _helped(found, f"{name} {part}")


if __name__ == "__main__":
    for file, text in pages().items():
        (FOLDER / file).write_text(text)
        sys.stdout.write(f"{FOLDER / file}\n")
