"""What docs/operating.md says in figures is what the code does."""

import inspect
import re
from pathlib import Path

import pytest

from remesh.orchestrator.control.memory.quarantine import FORGIVEN_AFTER, cool_down_s
from remesh.orchestrator.job.tables.run_tables import ElasticTable
from remesh.orchestrator.job.timers import Timers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
PATIENCE_S = ElasticTable().patience_s
SIZES = (2, 2048)


def table(first_cell):
    """The rows of the table whose header begins with this cell, without header and rule."""
    lines = PAGE.partition(f"| {first_cell} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def limits(name):
    """At each size; without the steps that some leave time for beside."""
    timers = Timers(patience_s=PATIENCE_S)
    if isinstance(inspect.getattr_static(Timers, name), property):
        return [getattr(timers, name)] * len(SIZES)
    return [called(getattr(timers, name), num_nodes=size, step_s=0.0) for size in SIZES]


def called(method, **values):
    """With those of the values that it wants."""
    wanted = inspect.signature(method).parameters.keys() & values
    return method(**{name: values[name] for name in wanted})


@pytest.mark.parametrize("row", table("limit"), ids=lambda row: row[0])
def test_each_limit_is_that_of_the_timers(row):
    name, _, *shown = row
    assert [float(figure) for figure in shown] == pytest.approx(limits(name), abs=0.0005)


def test_every_limit_of_the_timers_is_there():
    known = {name for name, _ in inspect.getmembers(Timers) if re.fullmatch(r"[a-z]\w*_s", name)}
    listed = {row[0] for row in table("limit")}
    assert known - listed == {"patience_s", "pause_s", "gather_s"}


def test_the_pauses_between_meshes_that_make_no_step_are_those_of_the_timers():
    assert "at once, then after 0.5 s, 1 s, 2 s and so on, up to 32 s" in PAGE
    pauses = [Timers(patience_s=PATIENCE_S).pause_s(tries) for tries in (1, 2, 3, 4, 99)]
    assert pauses == [0, 0.5, 1, 2, 32]


def test_the_cool_downs_are_those_of_a_quarantine():
    assert "after 10 s, 20 s, 40 s and so on, up to an hour" in PAGE
    assert [cool_down_s(losses, PATIENCE_S) for losses in (1, 2, 3, 99)] == [10, 20, 40, 3600]
    assert "one that stays for two hours is forgiven" in PAGE
    assert FORGIVEN_AFTER * cool_down_s(99, PATIENCE_S) == 2 * 3600


def test_each_exit_code_of_the_readme_has_its_advice():
    readme = (ROOT / "README.md").read_text()
    (told,) = re.findall(r"\| exit code \| meaning \|\n(.*?)\n\n", readme, re.DOTALL)
    meant = [row.split("|")[1].strip() for row in told.splitlines()[1:]]
    advised = [row[0] for row in table("exit code")]
    assert codes(advised) == codes(meant)


def codes(cells):
    return sorted(int(code) for cell in cells for code in re.findall(r"\d+", cell))
