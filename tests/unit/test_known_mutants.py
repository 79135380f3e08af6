"""The faults that are put into the machines by hand still have a place there."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = tomllib.loads((ROOT / "tests/sim/mutants/known.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", KNOWN, ids=lambda mutant: mutant["name"])
def test_what_a_known_mutant_changes_stands_once_in_its_file(mutant):
    assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1
    assert mutant["new"] != mutant["old"]
