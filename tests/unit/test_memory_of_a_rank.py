"""What a rank needs, told by the plan and held against what there is (user 10)."""

import json
from pathlib import Path

from remesh.cli.main import main

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")


def test_the_plan_tells_the_memory_of_a_rank_at_each_mesh(capsys):
    """user 10: parameters of the tiny model are 869,504."""
    assert main(["plan", TINY]) == 0
    head, first = capsys.readouterr().out.splitlines()[:2]
    assert "memory" in head.split()
    assert " MB" in first
    assert main(["plan", TINY, "--json"]) == 0
    for rung in json.loads(capsys.readouterr().out)["rungs"]:
        parts = rung["memory_bytes"]
        assert parts["parameters"] == 4 * 869_504
        assert sum(parts.values()) > 16 * 869_504
