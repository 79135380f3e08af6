"""Breaks the machines on purpose, one place at a time, and says what nobody notices.

Generated are: each condition negated, each call statement left out, each branch taken out, in what
decides (orchestrator/control, worker and vault). Beside them stand those of `mutants/known.toml`,
written by hand. Each is tried by seeds of the simulator up to the first that fails, then by the
unit tests of the machines. `mutants/survivors.toml` says why one may survive.

    .venv/bin/python tests/sim/mutants.py --sample 40 --seed 1 --only moves/transitions.py
"""

import argparse
import ast
import importlib.abc
import importlib.util
import os
import random
import resource
import subprocess
import sys
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "mutants"
ROOMS = ("control", "worker", "vault")
TESTS = (
    "test_control_*.py",
    "test_seat*.py",
    "test_rank_slots.py",
    "test_vault_shelf.py",
    "test_stuck_workers.py",
)
SEEDS, CPU_S, MEMORY_BYTES = 300, 400, 4 << 30
BY_SIM, BY_TESTS, SURVIVED = "sim", "tests", "survived"
MOST_SURVIVORS = 0.05


@dataclass(frozen=True)
class Mutant:
    """`name` stays the same as long as its function does; `source` is the whole file with it."""

    name: str
    path: str
    line: int
    source: str

    @property
    def module(self):
        return "remesh." + self.path.removesuffix(".py").replace("/", ".")


class Places(ast.NodeVisitor):
    """Every place of a file that can be broken: the function, the kind, and how to do it."""

    def __init__(self):
        self.found, self.inside = [], []

    def visit_FunctionDef(self, node):
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    def visit_ClassDef(self, node):
        self.visit_FunctionDef(node)

    def add(self, kind, node, do):
        if self.inside:
            self.found.append((".".join(self.inside), kind, node.lineno, do))

    def visit_If(self, node):
        self.negates(node, "test")
        self.add("branch out", node, lambda: setattr(node, "body", [ast.Pass()]))
        if node.orelse and not isinstance(node.orelse[0], ast.If):
            self.add("else out", node, lambda: setattr(node, "orelse", [ast.Pass()]))
        self.generic_visit(node)

    def visit_IfExp(self, node):
        self.negates(node, "test")
        self.generic_visit(node)

    def visit_While(self, node):
        self.negates(node, "test")
        self.generic_visit(node)

    def visit_comprehension(self, node):
        for index, test in enumerate(node.ifs):
            self.add("negated", test, lambda i=index, t=test: node.ifs.__setitem__(i, negated(t)))
        self.generic_visit(node)

    def visit_match_case(self, node):
        if node.guard is not None:
            guard = node.guard
            self.add("negated", guard, lambda: setattr(node, "guard", negated(guard)))
        if not is_assertion(node.body):
            first = node.body[0]
            self.add("branch out", first, lambda: setattr(node, "body", [ast.Pass()]))
        self.generic_visit(node)

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call) and not is_assertion([node]):
            empty = ast.Constant(value=None)
            self.add("call out", node, lambda: setattr(node, "value", empty))
        self.generic_visit(node)

    def negates(self, node, field):
        test = getattr(node, field)
        self.add("negated", test, lambda: setattr(node, field, negated(test)))


def negated(test):
    return ast.UnaryOp(op=ast.Not(), operand=test)


def is_assertion(body):
    """What is never to be reached, or does nothing."""
    text = ast.unparse(body[0])
    return text.startswith(("assert_never", "raise AssertionError")) or text == "pass"


def generated(path):
    """All mutants of a file."""
    text = (ROOT / path).read_text()
    counts, mutants = Counter(), []
    for index in range(len(places_of(text)[1])):
        tree, found = places_of(text)
        where, kind, line, do = found[index]
        do()
        counts[where, kind] += 1
        name = f"{path}::{where}::{kind} {counts[where, kind]}"
        mutants.append(Mutant(name, path, line, ast.unparse(ast.fix_missing_locations(tree))))
    return mutants


def places_of(text):
    tree, places = ast.parse(text), Places()
    places.visit(tree)
    return tree, places.found


def known():
    """Those written by hand; text that is not there any more is an error."""
    for entry in tomllib.loads((HERE / "known.toml").read_text())["mutant"]:
        text = (ROOT / entry["file"]).read_text()
        if text.count(entry["old"]) != 1:
            message = f"{entry['name']}: {entry['old']!r} stands not once in {entry['file']}"
            raise SystemExit(message)
        line = text[: text.index(entry["old"])].count("\n") + 1
        source = text.replace(entry["old"], entry["new"])
        yield Mutant(entry["name"], entry["file"], line, source)


def all_mutants(only):
    paths = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sorted((ROOT / "orchestrator" / room).rglob("*.py"))
    ]
    found = [mutant for path in paths for mutant in generated(path)]
    return [one for one in [*known(), *found] if only in one.path or one.name.startswith(only)]


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source than its file's."""

    def __init__(self, module, source):
        self.module, self.source = module, source

    def find_spec(self, name, _path, _target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.module else None

    def exec_module(self, module):
        exec(compile(self.source, f"<{self.module}>", "exec"), module.__dict__)


def tried(mutant, seeds):
    """In a child process, by whom it is noticed."""
    words = [sys.executable, __file__, "--child", mutant.module, "--seeds", str(seeds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".typing")}
    done = subprocess.run(
        words, input=mutant.source, text=True, capture_output=True, env=environment, check=False
    )
    said = done.stdout.strip().rpartition("\n")[2]
    return said if said in (BY_SIM, BY_TESTS, SURVIVED) else BY_SIM  # it did not get to say so


def child(module, seeds):
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.meta_path.insert(0, Broken(module, sys.stdin.read()))
    if not simulations_hold(seeds):
        return BY_SIM
    import pytest  # noqa: PLC0415 - after the finder stands

    files = [str(f) for pattern in TESTS for f in sorted((ROOT / "tests/unit").glob(pattern))]
    quiet = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--no-summary"]
    return SURVIVED if pytest.main([*quiet, *files]) == 0 else BY_TESTS


def simulations_hold(seeds):
    try:
        from remesh.orchestrator.sim.draws import simulate  # noqa: PLC0415 - likewise

        for seed in range(seeds):
            simulate(seed)
    except Exception:  # noqa: BLE001 - whatever a broken machine raises is a sign
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the simulator")
    parser.add_argument("--only", default="", help="a part of a path, or how a name begins")
    parser.add_argument("--child", help="for this script itself: the module that is broken")
    words = parser.parse_args()
    if words.child:
        say(child(words.child, words.seeds))
        return 0
    mutants = all_mutants(words.only)
    if words.sample is not None and words.sample < len(mutants):
        mutants = random.Random(words.seed).sample(mutants, words.sample)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda one: said(one, tried(one, words.seeds)), mutants))
    return table(mutants, outcomes)


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def said(mutant, outcome):
    if outcome == SURVIVED:
        say(f"survived: {mutant.name} (line {mutant.line})")
    return outcome


def table(mutants, outcomes):
    counts = Counter((m.path, outcome) for m, outcome in zip(mutants, outcomes, strict=True))
    say(f"{'file':55} {'mutants':>8} {'sim':>6} {'tests':>6} {'survived':>9}")
    for path in sorted({mutant.path for mutant in mutants}):
        row = [counts[path, outcome] for outcome in (BY_SIM, BY_TESTS, SURVIVED)]
        say(f"{path:55} {sum(row):8} {row[0]:6} {row[1]:6} {row[2]:9}")
    of = Counter(outcomes)
    say(f"{'all':55} {len(outcomes):8} {of[BY_SIM]:6} {of[BY_TESTS]:6} {of[SURVIVED]:9}")
    reasons = tomllib.loads((HERE / "survivors.toml").read_text()).get("reasons", {})
    alive = [m.name for m, outcome in zip(mutants, outcomes, strict=True) if outcome == SURVIVED]
    unexplained = [name for name in alive if name not in reasons]
    for name in unexplained:
        say(f"without a reason in mutants/survivors.toml: {name}")
    many = len(alive) > MOST_SURVIVORS * len(mutants)
    return 1 if many or unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
