"""A number and what it counts agree: one node, two nodes (user 21)."""

import ast
import re
from pathlib import Path

import pytest

from remesh.orchestrator.user_text import count

ROOT = Path(__file__).parents[2]
TOPS = ("api", "actors", "orchestrator", "data", "parallel")
NOUNS = (
    "nodes|workers|steps|rows|shards|leaves|replicas|microbatches|files|checkpoints|failures|ranks|"
    "tensors|slots|events|samples|sequences|groups|tries|lines|layers|copies|devices|tokens|spares|"
    "seconds|processes|processors|meshes"
)
PLURAL = re.compile(rf"^ (?:(?:more|local|new|of the) )?({NOUNS})\b")
ALWAYS_MANY = {
    # Where one would be said in another way, or there are two at least.
    ("data/manifest.py", "rows"),  # 0 rows are more usual there
    ("data/arrow_blocks.py", "rows"),
    ("data/arrow_blocks.py", "tokens"),
    ("data/building/documents.py", "leaves"),  # a verb, as in the two below
    ("orchestrator/job/faults_on_order.py", "leaves"),
    ("orchestrator/job/tables/train_tables.py", "leaves"),
    ("api/cli/screen/said.py", "tokens"),  # a rate
    ("orchestrator/plan/fitting.py", "processes"),  # 32 at least
    ("orchestrator/sim/checks/invariants.py", "nodes"),  # of a fault in a simulation
    ("orchestrator/sim/checks/invariants.py", "steps"),
    ("orchestrator/sim/simulation.py", "lines"),
    ("data/building/prepare.py", "tokens"),
    ("orchestrator/plan/placement.py", "devices"),  # `of`: always more than there are
    ("orchestrator/plan/ladder.py", "replicas"),
    ("orchestrator/plan/ladder.py", "workers"),
    ("orchestrator/plan/ladder.py", "leaves"),
    ("orchestrator/plan/rung.py", "groups"),  # the word before says of what kind
    ("orchestrator/plan/planner.py", "layers"),  # those of several stages
    ("parallel/plan/dealing.py", "leaves"),  # these are asserted of a plan
    ("parallel/plan/dealing.py", "ranks"),
    ("parallel/plan/leaves.py", "leaves"),
    ("parallel/plan/leaves.py", "replicas"),
    ("parallel/plan/leaves.py", "microbatches"),
    ("parallel/plan/layout.py", "ranks"),
    ("parallel/groups/mesh.py", "ranks"),
    ("parallel/techniques/tensor.py", "ranks"),
    ("parallel/techniques/context.py", "ranks"),
    ("parallel/techniques/context.py", "tokens"),
    ("parallel/files/convert_config.py", "tokens"),
    ("parallel/files/convert_names.py", "copies"),
    ("parallel/files/convert_names.py", "tensors"),
    ("parallel/files/fused.py", "groups"),
    ("parallel/files/fused.py", "rows"),
}


def said_of_many():
    """Each place and noun where a value stands in front of a plural."""
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            where = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield from ((where, noun) for noun in plurals(node))


def plurals(text: ast.JoinedStr):
    for before, after in zip(text.values, text.values[1:], strict=False):
        if isinstance(before, ast.FormattedValue) and isinstance(after, ast.Constant):
            yield from PLURAL.findall(str(after.value))


def test_such_a_place_is_found():
    (text,) = ast.parse('f"{n} nodes are in use"').body
    assert list(plurals(text.value)) == ["nodes"]


def test_no_sentence_says_one_nodes():
    """user 21: where a number may be 1 it is said by `count`."""
    found = set(said_of_many())
    assert found - ALWAYS_MANY == set()
    assert ALWAYS_MANY - found == set()


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "node", "1 node"),
        (0, "node", "0 nodes"),
        (2, "local node", "2 local nodes"),
        (3, "leaf", "3 leaves"),
        (12, "microbatch", "12 microbatches"),
        (93_948, "row", "93,948 rows"),
    ],
)
def test_a_number_and_its_noun(number, noun, said):
    assert count(number, noun) == said


def test_a_verb_agrees():
    said = [count(n, "node", "stays", "stay") for n in (1, 2)]
    assert said == ["1 node stays", "2 nodes stay"]
