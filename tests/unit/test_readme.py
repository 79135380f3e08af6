"""What the README says and can be compared with the code."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from remesh.cli.main import main
from remesh.orchestrator.control.words.phases import diagram
from remesh.orchestrator.job.job import Job, parse_job

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PACKAGES = ("orchestrator", "parallel", "data", "actors", "api")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = sorted(set(re.findall(r"`(remesh [^`]+)`", README)))


def blocks(language):
    return [text for found, text in FENCED if found == language]


def tree_rooms():
    """The folders of the tree, each with what it says of itself."""
    folders = []
    for line in blocks("")[0].splitlines():
        if line:
            depth = (len(line) - len(line.lstrip())) // 2
            name, said = line.split(maxsplit=1)
            folders[depth:] = [name]
            yield "".join(folders).rstrip("/"), said


def rooms():
    """The packages of the tree by folder, each with the first line of its docstring."""
    for package in PACKAGES:
        for init in (ROOT / package).rglob("__init__.py"):
            first, _, _ = ast.get_docstring(ast.parse(init.read_text())).partition("\n")
            yield str(init.parent.relative_to(ROOT)), first


def test_the_phases_are_drawn_from_the_table_of_moves():
    assert blocks("mermaid")[-1] == diagram() + "\n"


def test_the_tree_names_every_room_as_it_names_itself():
    listed, there = dict(tree_rooms()), dict(rooms())
    assert listed.keys() - there.keys() == {"examples", "tests", "benchmarks"}
    there.pop("api")  # the package `remesh` itself: its docstring is the product's
    assert {
        room: said[:1].upper() + said[1:] + "." for room, said in listed.items() if room in there
    } == there


def test_the_readme_shows_every_command():
    shown = {" ".join(command.split()[1:3]).partition(" JOB")[0] for command in COMMANDS}
    assert {"run", "status", "events", "data build", "--version"} <= shown


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_and_its_options_exist(command, capsys):
    words = [word for word in shlex.split(command)[1:] if word.islower()]
    names = [word for word in words if not word.startswith("-")]
    assert main([*names, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [word for word in words if word.startswith("-") and word not in shown] == []


def test_the_options_in_the_table_of_commands_exist(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    row = next(line for line in README.splitlines() if line.startswith("| `remesh run"))
    options = re.findall(r"--[a-z-]+", row)
    assert options
    assert [option for option in options if option not in shown] == []


def test_the_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b(?=[`  ]|$)", "\n".join(blocks("console")))) <= targets
    assert set(re.findall(r"`make ([a-z]+)`", README)) <= targets


def test_the_job_file_shows_every_key_with_its_default():
    (text,) = blocks("toml")
    job = parse_job(text, name="README.md")
    shown = {f"{t}.{key}" for t, keys in tomllib.loads(text).items() for key in keys}
    fields = {
        f"{name}.{key}": (field, getattr(getattr(job, name), key))
        for name, table in Job.model_fields.items()
        for key, field in table.annotation.model_fields.items()
    }
    assert shown == fields.keys()
    for key, (field, value) in fields.items():
        if not field.is_required() and field.default_factory is None and field.default is not None:
            assert value == field.default, key
