"""Which agents are begun before the controller: those that it will ask for."""

import subprocess
import sys

from control_values import options

from remesh.actors.jobs.early_agents import wanted
from remesh.orchestrator.control.words.events import NodeJoined


def nodes(*names):
    return [NodeJoined(node=name, slots=2, head=name == "head") for name in names]


def test_they_are_on_the_nodes_on_which_workers_are_to_start():
    four = options(steps=80, max_dp=4)
    assert wanted(four, nodes("head", "b")) == ["head", "b"]
    assert wanted(four, nodes("head", "b", "c")) == ["head", "b"], "no more than it takes"


def test_a_run_of_few_nodes_holds_no_others():
    assert wanted(options(steps=80, max_dp=4, max_nodes=1), nodes("head", "b")) == ["head"]


def test_there_are_none_without_nodes():
    assert wanted(options(steps=80, max_dp=4), []) == []


def test_a_start_loads_ray_only_once_its_cluster_is_known():
    """Ray reads its token as it is loaded: a local cluster could not be reached."""
    text = "import sys; import remesh.actors.jobs.submit; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
