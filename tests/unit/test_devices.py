"""Which device a run trains on is said: no GPU is reserved or passed over in silence."""

from pathlib import Path

import pytest

from remesh.actors.node.offers import Offers, Room, check_device
from remesh.cli.main import main
from remesh.orchestrator.user_errors import UserError

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")


def entry(*, alive=True, host="10.0.0.2", **resources):
    """A node as `ray.nodes()` lists it."""
    return {
        "NodeID": f"id-{host}",
        "NodeManagerAddress": host,
        "Alive": alive,
        "Resources": resources,
    }


def test_gpu_ranks_are_refused_by_name(capsys):
    """parallel A1"""
    assert main(["plan", TINY, "--set", 'train.device="cuda"']) == 2
    error = capsys.readouterr().err
    assert (
        'train.device = "cuda" and GPU ranks are not built yet; leave it out, or use "cpu"' in error
    )
    assert main(["plan", TINY, "--set", "train.device=cpu"]) == 0


def test_a_cluster_with_gpus_is_refused_with_the_cure():
    """parallel A1: its GPUs were reserved and not used."""
    nodes = [entry(CPU=8.0), entry(CPU=8.0, GPU=2.0, host="10.0.0.3")]
    with pytest.raises(UserError, match=r"10\.0\.0\.3 has 2 GPUs, and .*--set train\.device=cpu"):
        check_device("auto", nodes)
    check_device("cpu", nodes)
    check_device("auto", [nodes[0], entry(CPU=8.0, GPU=1.0, alive=False)])


def test_a_node_with_gpus_that_joins_later_is_left_out_and_named_once():
    """parallel A1"""
    told = []
    offers = Offers("auto", told.append)
    for _ in range(3):
        assert offers.room(entry(CPU=8.0, GPU=1.0)) is None
    (text,) = told
    assert text.startswith("node 10.0.0.2 has 1 GPU, so it is not used: GPU ranks are not built")
    assert "--set train.device=cpu" in text


@pytest.mark.parametrize(
    ("device", "resources", "slots"),
    [
        ("auto", {"CPU": 4.0}, 4),
        ("auto", {"CPU": 2.5}, 2),
        ("auto", {"CPU": 2.0, "GPU": 0.0}, 2),
        ("cpu", {"CPU": 64.0, "GPU": 8.0}, 64),
    ],
)
def test_a_node_offers_its_processors(device, resources, slots):
    """parallel A1: with "cpu" GPUs are neither reserved nor used."""
    offered = Offers(device, pytest.fail).room(entry(**resources))
    assert offered == Room(node_id="id-10.0.0.2", slots=slots)


def test_a_node_without_processors_offers_nothing():
    offers = Offers("cpu", pytest.fail)
    assert offers.room(entry(CPU=0.5)) is None
    assert offers.room(entry(GPU=8.0)) is None
