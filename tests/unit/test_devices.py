"""Which device a run trains on is said: no GPU is reserved or passed over in silence."""

from pathlib import Path

import pytest

from remesh.cli.main import main

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")


@pytest.mark.xfail(strict=True, reason="parallel A1")
def test_gpu_ranks_are_refused_by_name(capsys):
    """parallel A1"""
    assert main(["plan", TINY, "--set", 'train.device="cuda"']) == 2
    error = capsys.readouterr().err
    assert "GPU ranks are not built yet" in error
    assert '--set train.device="cpu"' in error or 'use "cpu"' in error
