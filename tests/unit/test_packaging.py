"""What pyproject.toml, constraints.txt and the links for tools say, compared with the tree."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
TOP = ("api", "orchestrator", "actors", "parallel", "data")
HEAVY = ("torch", "pyarrow", "ray")


def modules_in(folder):
    """The modules of a folder and its packages, as names below the top folder."""
    top = ROOT / folder.split("/")[0]
    return tuple(
        ".".join(path.relative_to(top).with_suffix("").parts)
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__main__.py"
    )


PURE = {
    "api": ("__init__", "runs", "cli.main", "cli.screen.progress", "cli.status_command"),
    "parallel": (
        *modules_in("parallel/plan"),
        "files.convert_config",
        "files.convert_names",
        "files.fused",
        "files.nesting",
        "files.opcodes",
        "files.ranged_file",
        "holding.owned",
        "optim.lr",
        "optim.slots",
        "state.bounded_json",
        "state.box_index",
        "state.checkpoint",
        "state.fragments",
        "state.headers",
        "state.panels",
        "state.reshard",
        "state.retention",
        "state.root_manifest",
        "state.storage",
        "state.writers",
    ),
    "data": ("cursor", "digest", "manifest", "order", "skips"),
    "orchestrator": modules_in("orchestrator"),
}


def package_of(folder):
    """The import name of a folder of the tree: api is the root package itself."""
    return ".".join(["remesh", *folder.parts]).replace("remesh.api", "remesh")


def packages_of_the_tree():
    inits = [path for top in TOP for path in (ROOT / top).rglob("__init__.py")]
    folders = [path.parent.relative_to(ROOT) for path in inits]
    return {package_of(folder): folder for folder in folders}


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def needed(requirement, found):
    """Adds everything that a requirement brings along, here and now."""
    name = canonicalize_name(requirement.name)
    extras = requirement.extras or {""}
    if extras <= found.setdefault(name, set()):
        return
    found[name] |= extras
    for text in requires(name) or []:
        child = Requirement(text)
        if not child.marker or any(child.marker.evaluate({"extra": extra}) for extra in extras):
            needed(child, found)


def declared():
    extra = PROJECT["project"]["optional-dependencies"]["dev"]
    return [Requirement(text) for text in PROJECT["project"]["dependencies"] + extra]


def test_every_package_of_the_tree_is_declared_where_it_stands():
    tree = packages_of_the_tree()
    assert set(SETUPTOOLS["packages"]) == set(tree)
    assert {name: Path(where) for name, where in SETUPTOOLS["package-dir"].items()} == tree


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for top in TOP for path in (ROOT / top).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_links_for_tools_lead_to_the_packages():
    links = {path.name: path for path in (ROOT / ".typing" / "remesh").iterdir()}
    expected = {top: ROOT / top for top in TOP if top != "api"}
    own = ("__init__.py", "py.typed", "cli", "runs.py")
    expected |= {name: ROOT / "api" / name for name in own}
    assert {name: link.resolve(strict=True) for name, link in links.items()} == expected
    assert not any(path.readlink().is_absolute() for path in links.values())


def test_everything_that_is_installed_is_pinned():
    found = {}
    for requirement in declared():
        needed(requirement, found)
    assert {"numpy", "jinja2", "pluggy"} <= found.keys()
    assert sorted(found.keys() - pins().keys()) == []


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_each_pin_is_within_its_range(requirement):
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_each_dependency_is_imported_somewhere():
    """user 24"""
    imported = set()
    for path in (path for top in TOP for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    needed_by_all = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    assert needed_by_all - imported == set()


@pytest.mark.parametrize("layer", PURE)
def test_pure_files_load_no_heavy_library(layer):
    modules = [f"{package_of(Path(layer))}.{name}" for name in PURE[layer]]
    script = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name.removesuffix(".__init__"))
    heavy = [library for library in {HEAVY} if library in sys.modules]
    assert not heavy, f"{{name}} loads {{heavy}}"
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
