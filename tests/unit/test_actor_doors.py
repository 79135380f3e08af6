"""Whoever finds an actor by its name loads the class that Ray knows: next to nothing has to be."""

import inspect
import subprocess
import sys

import pytest

from remesh.actors.controller.run_controller import RunController
from remesh.actors.controller.starting import ControllerActor

BEHIND = {
    "remesh.actors.controller.starting": "remesh.actors.controller.run_controller",
    "remesh.actors.agent.agent": "remesh.actors.agent.owner",
}


@pytest.mark.parametrize("door", BEHIND)
def test_a_door_does_not_load_what_is_behind_it(door):
    script = f"import sys; import {door}; sys.exit({BEHIND[door]!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_all_that_is_asked_of_a_controller_goes_through_its_door():
    doors = [name for name in vars(ControllerActor) if not name.startswith("_")]
    assert sorted(doors) == ["end", "hear", "poll", "post", "stop"]
    for name in (*doors, "__init__"):
        asked, does = getattr(ControllerActor, name), getattr(RunController, name)
        assert list(inspect.signature(asked).parameters) == list(inspect.signature(does).parameters)
