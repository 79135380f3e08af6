"""No assert of a test compares what a clock says: a busy machine would fail it.

Nor does a test wait by a limit of its own: waiting.py has one, which ends a hang.

Followed are names within a file: a moment is what a clock said, a time the difference of two
moments; what a function returns, and what is run of it in other processes, counts as well.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CLOCKS = {
    "time.time", "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time",
    "os.times", "datetime.now",
}  # fmt: skip
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}


class Clocks(ast.NodeVisitor):
    """Of one file: the names that stand for moments and for times, as far as it is known yet."""

    def __init__(self, tree):
        self.moments, self.times = set(), set()
        self._own = {part.name for part in ast.walk(tree) if isinstance(part, ast.FunctionDef)}
        self._functions = []

    def says_moment(self, node):
        return any(
            self._is_clock(part) or _name(part) in self.moments for part in self._parts(node)
        )

    def says_time(self, node):
        return any(
            _name(part) in self.times
            or (
                isinstance(part, ast.BinOp)
                and isinstance(part.op, ast.Sub)
                and self.says_moment(part.left)
                and self.says_moment(part.right)
            )
            for part in self._parts(node)
        )

    def compares(self, node):
        """Whether an assert depends on a time, or on what comes first."""
        compared = [part for part in ast.walk(node) if isinstance(part, ast.Compare)]
        ordered = [part for part in compared if any(isinstance(op, ORDERS) for op in part.ops)]
        return self.says_time(node) or any(self.says_moment(part) for part in ordered)

    def visit_FunctionDef(self, node):
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Return(self, node):
        if self._functions and node.value:
            self._learn(self._functions[-1], node.value)

    def visit_Assign(self, node):
        for target in node.targets:
            for name in _targets(target):
                self._learn(name, node.value)

    def visit_AugAssign(self, node):
        self._learn(_name(node.target), node.value)

    def visit_NamedExpr(self, node):
        self._learn(_name(node.target), node.value)

    def visit_For(self, node):
        for name in _targets(node.target):
            self._learn(name, node.iter)
        self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend", "add"):
            for argument in node.args:
                self._learn(_name(node.func.value), argument)
        self.generic_visit(node)

    def _parts(self, node):
        """As `ast.walk`, but not what is handed to a function of the file: its returns tell."""
        yield node
        is_own = isinstance(node, ast.Call) and _name(node.func) in self._own
        for part in [node.func] if is_own else ast.iter_child_nodes(node):
            yield from self._parts(part)

    def _learn(self, name, value):
        if name and self.says_time(value):
            self.times.add(name)
        elif name and self.says_moment(value):
            self.moments.add(name)

    @staticmethod
    def _is_clock(node):
        return isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS


def _name(node):
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _targets(node):
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [name for part in parts for name in _targets(part)]
        case ast.Starred(value=inner) | ast.Subscript(value=inner):
            return _targets(inner)
    return [_name(node)]


def comparisons(text):
    """The lines of asserts that compare clocks."""
    tree = ast.parse(text)
    clocks, known = Clocks(tree), None
    while known != (known := (set(clocks.moments), set(clocks.times))):
        clocks.visit(tree)
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return [node.lineno for node in asserts if clocks.compares(node.test)]


def waits(text):
    """The lines of loops that go on until a clock says that it is enough."""
    loops = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.While)]
    told = [(loop.lineno, part) for loop in loops for part in ast.walk(loop.test)]
    return [line for line, part in told if Clocks._is_clock(part)]


TIERS = ("unit", "sim", "dist", "cluster", "support")


@pytest.mark.parametrize("tier", TIERS)
def test_no_assert_compares_clocks(tier):
    found = {path.name: comparisons(path.read_text()) for path in (TESTS / tier).glob("*.py")}
    assert len(found) > 3
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("tier", TIERS)
def test_nobody_waits_by_a_limit_of_his_own(tier):
    found = {path.name: waits(path.read_text()) for path in (TESTS / tier).glob("*.py")}
    assert {name for name, lines in found.items() if lines} <= {"waiting.py"}


def test_a_wait_by_a_clock_is_seen():
    assert waits("x = 1\nwhile not found and time.monotonic() < end_s:\n pass") == [2]
    assert waits("while time.monotonic:\n pass\nwhile drive.now_s < end_s:\n pass") == [1]


CAUGHT = {
    "a clock in the assert": "assert time.monotonic() - began < 1",
    "a moment": "began = time.time()\nassert began < limit",
    "a time": "began = os.times()\ntook = time.perf_counter() - began\nassert took < 1",
    "of a function": "def took():\n b = time.time()\n return time.time() - b\nassert took() < 1",
    "in another process": (
        "def took(seat):\n b = time.time()\n return time.time() - b\n"
        "run = pool.start(took, 4)\nassert all(s < 1 for s in run.results())"
    ),
    "in a list": "a = time.time()\nt = []\nt.append(time.time() - a)\nassert max(t) < 1",
    "in a loop": "a = time.time()\nfor t in [time.time() - a]:\n assert t < 1",
    "unpacked": "a = time.time()\n_, *t = [time.time() - a]\nassert all(s < 1 for s in t)",
    "of an object": "self.a = time.time()\nassert time.time() - self.a < 1",
    "a truth": "a = time.time()\nfast = time.time() - a < 1\nassert fast",
}
FREE = {
    "a date in a value": "record = Record(ended_s=time.time() - age_s)\nassert record",
    "a record of now": "def record():\n return Record(time.time())\nassert heard == record()",
    "a delay": "def kill(s):\n return s > 1\na = time.time()\nassert kill(time.time() - a)",
    "an object's moment": "watch.seen_s = time.time()\nassert len(watch.events) < 3",
    "a deadline": "end = time.time() + 60\nwhile time.time() < end:\n pass\nassert found",
    "a number": "assert count < 3",
}


@pytest.mark.parametrize("text", CAUGHT.values(), ids=CAUGHT)
def test_what_compares_clocks_is_seen(text):
    assert comparisons(text)


@pytest.mark.parametrize("text", FREE.values(), ids=FREE)
def test_what_does_not_is_let_be(text):
    assert comparisons(text) == []
