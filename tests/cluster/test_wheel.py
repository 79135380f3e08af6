"""The wheel that users install, built from a copy of the tree."""

import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from place import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
SOURCES = PROJECT["tool"]["setuptools"]["package-dir"]
TOP = {where.partition("/")[0] for where in SOURCES.values()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in TOP:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def sources():
    """The bytes of every file that belongs into the wheel, by its path there."""
    found = {"remesh/py.typed": (REPOSITORY / "api" / "py.typed").read_bytes()}
    for package, where in SOURCES.items():
        for path in (REPOSITORY / where).glob("*.py"):
            found[f"{package.replace('.', '/')}/{path.name}"] = path.read_bytes()
    return found


def test_the_wheel_holds_the_tree_and_nothing_else(wheel):
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert len(names) == len(set(names))
    assert {name: wheel.read(name) for name in names} == sources()


def test_the_wheel_says_what_it_is(wheel):
    (entries,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "remesh = remesh.cli.__main__:main" in wheel.read(entries).decode()
    described = wheel.read(entries.replace("entry_points.txt", "METADATA")).decode()
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "# Remesh"):
        assert line in described.splitlines()


def test_the_command_runs_from_the_wheel_alone(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from remesh.cli import main; print(main.__file__); main.main(['--version'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert f"remesh {PROJECT['project']['version']}" in done.stdout
