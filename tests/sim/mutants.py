"""Breaks the machines on purpose, one place at a time, and says what nobody notices.

Generated are: each condition negated, each call statement left out, each branch taken out, in what
decides (orchestrator/control, worker and vault). Beside them stand those of `mutants/known.toml`,
written by hand. Each is tried by seeds of the simulator up to the first that fails, then by unit
tests: all of them that call what is broken. `mutants/survivors.toml` says why one may survive.

A mutant that cannot be imported, or whose process ends without a word, is noticed by nobody: it is
"broke", and no evidence. One that changes nothing is tried before all others, and has to survive.

    .venv/bin/python tests/sim/mutants.py --sample 40 --seed 1 --only moves/transitions.py
"""

import argparse
import ast
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import reaching

ROOT = reaching.ROOT
HERE = Path(__file__).resolve().parent / "mutants"
ROOMS = ("control", "worker", "vault")
SEEDS, CPU_S, MEMORY_BYTES = 300, 200, 8 << 30
BY_SIM, BY_TESTS, SURVIVED, BROKE = VERDICTS = ("sim", "tests", "survived", "broke")
MOST_SURVIVORS = 0.05
ALL = "all"  # for what is broken outside of functions


@dataclass(frozen=True)
class Mutant:
    """`name` stays the same as long as its function does; `source` is the whole file with it.

    `function` is the one that is broken, `tests` are files beside those that call it.
    """

    name: str
    path: str
    line: int
    source: str
    function: str
    tests: tuple[str, ...] = ()

    @property
    def module(self):
        return "remesh." + self.path.removesuffix(".py").replace("/", ".")


class Places(ast.NodeVisitor):
    """Every place of a file that can be broken: the function, the kind, and how to do it."""

    def __init__(self):
        self.found, self.inside, self.function, self.functions = [], [], ALL, {}

    def visit_FunctionDef(self, node):
        outer, self.function = self.function, self.function
        if outer == ALL:
            self.function = ".".join([*self.inside, node.name])
            self.functions |= dict.fromkeys(
                range(node.body[0].lineno, node.end_lineno + 1), self.function
            )
        self.visit_ClassDef(node)
        self.function = outer

    def visit_ClassDef(self, node):
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    def add(self, kind, node, do):
        if self.inside:
            where = ".".join(self.inside)
            self.found.append((where, kind, node.lineno, self.function, do))

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
    for index in range(len(places_of(text)[1].found)):
        tree, places = places_of(text)
        where, kind, line, function, do = places.found[index]
        do()
        counts[where, kind] += 1
        name = f"{path}::{where}::{kind} {counts[where, kind]}"
        source = ast.unparse(ast.fix_missing_locations(tree))
        mutants.append(Mutant(name, path, line, source, function))
    return mutants


def places_of(text):
    tree, places = ast.parse(text), Places()
    places.visit(tree)
    return tree, places


def known():
    """Those written by hand; text that is not there any more is an error."""
    for entry in tomllib.loads((HERE / "known.toml").read_text())["mutant"]:
        text = (ROOT / entry["file"]).read_text()
        if text.count(entry["old"]) != 1:
            message = f"{entry['name']}: {entry['old']!r} stands not once in {entry['file']}"
            raise SystemExit(message)
        line = text[: text.index(entry["old"])].count("\n") + 1
        function = places_of(text)[1].functions.get(line, ALL)
        source = text.replace(entry["old"], entry["new"])
        tests = tuple(entry.get("tests", ()))
        yield Mutant(entry["name"], entry["file"], line, source, function, tests)


def unbroken(mutant):
    """Nothing is wrong with it: whoever notices it is wrong about all others, too."""
    source = ast.unparse(ast.parse((ROOT / mutant.path).read_text()))
    return Mutant("nothing", mutant.path, 0, source, mutant.function, mutant.tests)


def all_mutants(only):
    paths = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sorted((ROOT / "orchestrator" / room).rglob("*.py"))
    ]
    found = [*known(), *(mutant for path in paths for mutant in generated(path))]
    return [one for one in found if only in one.path or one.name.startswith(only)]


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source than its file's."""

    def __init__(self, module, source):
        self.module, self.source = module, source

    def find_spec(self, name, _path, _target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.module else None

    def exec_module(self, module):
        exec(compile(self.source, f"<{self.module}>", "exec"), module.__dict__)


def tried(mutant, callers):
    """In a child process, by whom it is noticed; if by nobody, as nothing came of it, what came."""
    by_name = f"{mutant.path}::{mutant.function}"
    everybody = {one: None for found in callers.values() for one in found}
    found = list(everybody) if mutant.function == ALL else callers.get(by_name, [])
    order = {
        "module": mutant.module,
        "source": mutant.source,
        "seeds": sorted(one for one in found if isinstance(one, int)),
        "tests": [one for one in found if isinstance(one, str)],
        "files": reaching.files_of(mutant.tests),
    }
    words = [sys.executable, __file__, "--child"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".typing")}
    done = subprocess.run(
        words,
        input=json.dumps(order),
        text=True,
        capture_output=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    verdict = done.stdout.strip().rpartition("\n")[2]
    if verdict in VERDICTS:
        return verdict, ""
    return BROKE, f"{done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}"


class TooLongError(Exception):
    """It goes on for ever, or nearly so."""


def child(order):
    """Its last word is a verdict; it has none if it cannot be imported."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 20))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGXCPU, too_long)
    sys.meta_path.insert(0, Broken(order["module"], order["source"]))
    importlib.import_module(order["module"])
    if not simulations_hold(order["seeds"]):
        return BY_SIM
    files = sorted({str(ROOT / one.partition("::")[0]) for one in order["tests"]})
    picked = reaching.Picked(wanted=frozenset(order["tests"]))
    held = reaching.tests_hold(files, picked)
    held = held and reaching.tests_hold(order["files"], reaching.Picked())
    return SURVIVED if held else BY_TESTS


def too_long(_signal, _frame):
    raise TooLongError


def simulations_hold(seeds):
    if not seeds:
        return True
    from remesh.orchestrator.sim.draws import simulate  # noqa: PLC0415 - after the finder stands

    try:
        for seed in seeds:
            simulate(seed)
    except Exception:  # noqa: BLE001 - whatever a broken machine raises is a sign
        return False
    return True


def main():
    words = parsed()
    if words.child:
        say(child(json.loads(sys.stdin.read())))
        return 0
    mutants = all_mutants(words.only)
    if words.sample is not None and words.sample < len(mutants):
        mutants = random.Random(words.seed).sample(mutants, words.sample)
    callers = known_callers(words)
    verdict, why = tried(unbroken(mutants[0]), callers)
    if verdict != SURVIVED:
        raise SystemExit(f"what is not broken is noticed, by {verdict}: {why}")
    ends_s = time.monotonic() + 60 * words.minutes

    def outcome(mutant):
        return said(mutant, *tried(mutant, callers)) if time.monotonic() < ends_s else None

    with ThreadPoolExecutor(words.processes) as pool:
        outcomes = list(pool.map(outcome, mutants))
    both = zip(mutants, outcomes, strict=True)
    return table([(mutant, outcome) for mutant, outcome in both if outcome])


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the simulator")
    parser.add_argument("--only", default="", help="a part of a path, or how a name begins")
    parser.add_argument("--minutes", type=float, default=10**6, help="none is begun after that")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--callers", type=Path, help="who calls what: read, or written first")
    parser.add_argument("--child", action="store_true", help="for this script itself")
    return parser.parse_args()


def known_callers(words):
    if words.callers and words.callers.exists():
        return json.loads(words.callers.read_text())
    callers = reaching.callers(words.seeds)
    if words.callers:
        words.callers.write_text(json.dumps(callers))
    return callers


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def said(mutant, verdict, why):
    if verdict in (SURVIVED, BROKE):
        say(f"{verdict}: {mutant.name} (line {mutant.line}) {why}".rstrip())
    return verdict


def table(outcomes):
    counts = Counter((mutant.path, verdict) for mutant, verdict in outcomes)
    say(f"{'file':50} {'tried':>8}" + "".join(f"{verdict:>9}" for verdict in VERDICTS))
    for path in sorted({mutant.path for mutant, _ in outcomes}):
        row(path, [counts[path, verdict] for verdict in VERDICTS])
    of = Counter(verdict for _, verdict in outcomes)
    row("all", [of[verdict] for verdict in VERDICTS])
    reasons = tomllib.loads((HERE / "survivors.toml").read_text()).get("reasons", {})
    alive = [mutant.name for mutant, verdict in outcomes if verdict == SURVIVED]
    unexplained = [name for name in alive if name not in reasons]
    for name in unexplained:
        say(f"without a reason in mutants/survivors.toml: {name}")
    many = len(alive) > MOST_SURVIVORS * (len(outcomes) - of[BROKE])
    return 1 if many or unexplained else 0


def row(name, numbers):
    say(f"{name:50} {sum(numbers):8}" + "".join(f"{number:9}" for number in numbers))


if __name__ == "__main__":
    sys.exit(main())
