"""The one builder of ladders for tests, in the words of a job file."""

from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.plan.ladder import Flight, Ladder
from remesh.orchestrator.plan.rung import Unit

KEYS = ("max_dp", "tp", "zero_stage", "zero_group", "allow_cross_node_tp", "num_leaves")


def flight(*, max_dp=4, tp=1, zero_stage=0, zero_group=0, allow_cross_node_tp=False):
    return Flight.of_units(
        replicas=max_dp,
        unit=Unit(workers=tp, on_one_node=not allow_cross_node_tp),
        shards=zero_group if zero_stage else 1,
        bit_key=f"tp={tp}",
    )


def ladder(*, num_leaves=12, **words):
    return Ladder(flights=(flight(**words),), num_leaves=num_leaves)


def mixed(*flights, num_leaves=12):
    """Several kinds of meshes, each in the words of `flight`."""
    return Ladder(flights=tuple(flight(**words) for words in flights), num_leaves=num_leaves)


def options_with_ladder(**words):
    """Options in the words of a job file, or with a `ladder` of their own."""
    shape = {key: words.pop(key) for key in KEYS if key in words}
    return Options(**{"steps": 80, "ladder": ladder(**shape), **words})
