"""Lets the tests of this tier import what they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from asked_run import TrainingRun


@pytest.fixture
def training_run(tmp_path):
    """A live run in a folder of its own."""
    run = TrainingRun(tmp_path / "run")
    yield run
    run.close()
