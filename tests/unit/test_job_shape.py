"""What all meshes of a job have in common, on the nodes that are started for it."""

from pathlib import Path

import pytest

from remesh.actors.jobs.submit import _shape
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.shape import Shape, spare_reason
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.layout import Layout

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def shape(*overrides, nodes=2, places=2, address=None):
    options = RunOptions(nodes=nodes, workers_per_node=places, address=address)
    return _shape(load_job(TINY, overrides), options)


@pytest.mark.parametrize(
    ("overrides", "nodes", "places", "max_dp"),
    [
        ([], 2, 2, 4),
        ([], 1, 3, 3),
        (["elastic.max_workers=2"], 2, 2, 2),
        (["parallel.tp=2"], 2, 2, 2),
        (["parallel.tp=2", "elastic.max_workers=8"], 2, 3, 2),
        (
            ["parallel.tp=2", "elastic.max_workers=8", "parallel.allow_cross_node_tp=true"],
            2,
            3,
            3,
        ),
        (["zero.stage=1", "zero.group=2"], 3, 1, 2),
        (["parallel.dp=2", "zero.stage=3"], 2, 2, 2),
    ],
)
def test_replicas_are_those_that_have_room(overrides, nodes, places, max_dp):
    found = shape(*overrides, nodes=nodes, places=places)
    assert found.max_dp == max_dp
    assert found.largest == max_dp * found.tp


def test_nodes_without_room_for_a_mesh_are_refused_with_the_numbers():
    with pytest.raises(UserError) as caught:
        shape("parallel.tp=4", nodes=2, places=2)
    assert str(caught.value) == (
        "--nodes 2 with --workers-per-node 2 has no room for a mesh of 4 workers, each 4 of them "
        "on one node; use more, or a smaller parallel.tp or zero.group"
    )
    with pytest.raises(UserError, match="no room for a mesh of 4 workers; use more"):
        shape("zero.stage=1", "zero.group=4", nodes=1, places=3)
    assert shape("parallel.tp=4", nodes=1, places=1, address="auto").tp == 4


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("group", [0, 1, 2, 3])
def test_meshes_are_multiples_of_the_smallest_and_never_above_what_there_is(tp, group):
    found = Shape(max_dp=6, tp=tp, zero_stage=1, zero_group=group)
    for num_groups in range(9):
        layout = found.layout(num_groups)
        size = found.num_fitting(num_groups)
        assert size == (0 if layout is None else layout.world_size)
        assert size % found.smallest == 0
        assert size <= min(num_groups * tp, found.largest)
        if layout is not None:
            assert layout.dp % found.shard_size(layout.dp) == 0
    assert found.at_least(found.smallest + 1) == 2 * found.smallest


def test_a_spare_worker_is_explained():
    hybrid = Shape(max_dp=4, tp=2, zero_stage=1, zero_group=2)
    assert spare_reason(hybrid, Layout(dp=4, tp=2)) == "the job has at most 4 replicas"
    assert spare_reason(hybrid, Layout(dp=2, tp=2)) == (
        "a mesh has whole groups of 2 replicas, 4 workers at a time"
    )
    assert spare_reason(Shape(max_dp=4, tp=2), Layout(dp=2, tp=2)) == (
        "a mesh has whole replicas, 2 workers at a time"
    )
