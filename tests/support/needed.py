"""What some tests need and a machine may lack: skipped then, but failed in CI."""

import os
import shutil
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def program(name):
    """The path of a program that `deploy/install-test-packages` installs."""
    return shutil.which(name) or do_without(f"{name} is not installed")


def shared(path):
    """A file of the folder beside the repository, which is test data and not part of it."""
    found = SHARED / path
    return found if found.exists() else do_without(f"{found} is missing")


def root():
    """For what only root may do."""
    if os.geteuid() != 0:
        do_without("this takes root")


def do_without(reason):
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
