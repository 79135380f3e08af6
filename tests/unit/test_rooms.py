"""The plan of the house: rooms that point one way, with few doors, each name in one place."""

import ast
import tokenize
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = {"orchestrator": "orchestrator", "actors": "actors", "parallel": "parallel", "data": "data"}
TOPS["api/cli"] = "cli"
MAX_ENTRIES = 15
DEGREES = frozenset({"tp", "pp", "cp", "ep"})
SPEAKS_OF_DEGREES = (
    "orchestrator/job/",
    "orchestrator/plan/",
    "parallel/plan/",
    "parallel/techniques/",
    "parallel/groups/mesh.py",
    "api/cli/",
)

KNOWN_IN = {
    "exp_avg": ("parallel/optim/",),  # what an optimizer remembers
    "embedding.weight": ("parallel/model/", "parallel/plan/", "parallel/files/"),
    "head.weight": ("parallel/model/", "parallel/plan/", "parallel/files/"),
    "016x": ("data/digest.py",),  # how the digest of a step is written
}


def files():
    """Every module by its import name, without `remesh.`; a package is its `__init__`."""
    return {
        ".".join([name, *path.relative_to(ROOT / top).with_suffix("").parts]): path
        for top, name in TOPS.items()
        for path in (ROOT / top).rglob("*.py")
    }


def imports(path, there):
    """The modules of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remesh."):
            module = node.module.removeprefix("remesh.")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                if inner in there or module in there:
                    yield inner if inner in there else module


def room_of(module):
    return module.rpartition(".")[0]


def import_graph():
    there = files()
    return {module: set(imports(path, there)) for module, path in there.items()}


def circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def definitions():
    """The classes, and the aliases of types, of every file."""
    for path in files().values():
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                names = [n for n in names if n.strip("_")[:1].isupper() and not n.isupper()]
            for name in names:
                yield name.strip("_"), str(path.relative_to(ROOT))


def twice(pairs):
    places = defaultdict(list)
    for name, where in pairs:
        places[name].append(where)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_the_graph_is_seen():
    graph = import_graph()
    assert len(graph) > 200
    assert "orchestrator.control.memory.state" in graph["orchestrator.control.controller"]


def test_files_import_in_no_circle():
    assert circle(import_graph()) is None


def test_rooms_import_in_no_circle():
    rooms = defaultdict(set)
    for module, imported in import_graph().items():
        rooms[room_of(module)] |= {room_of(other) for other in imported} - {room_of(module)}
    assert circle(rooms) is None


def test_no_room_has_more_than_fifteen_entries():
    entries = Counter(room_of(m) for m in files() if not m.endswith(".__init__"))
    entries += Counter(room_of(room) for room in {room_of(m) for m in files()} if "." in room)
    assert {room: n for room, n in entries.items() if n > MAX_ENTRIES} == {}


def test_no_file_has_the_name_of_another():
    named = ((path.name, str(path.relative_to(ROOT))) for path in files().values())
    assert twice((name, path) for name, path in named if not name.startswith("__")) == {}


def test_no_class_has_the_name_of_another():
    assert twice(definitions()) == {}


def test_degrees_are_named_where_layouts_are_made_only():
    found = set()
    for path in files().values():
        where = str(path.relative_to(ROOT))
        with path.open("rb") as file:
            names = {t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.NAME}
        if names & DEGREES and not where.startswith(SPEAKS_OF_DEGREES):
            found.add(where)
    assert sorted(found) == []


def test_words_of_one_room_are_written_in_no_other():
    found = set()
    for path in files().values():
        where = str(path.relative_to(ROOT))
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for word, rooms in KNOWN_IN.items():
            if not where.startswith(rooms) and any(word in text for text in strings):
                found.add((word, where))
    assert found == set()
