"""The one builder of ladders for tests, in the words of a job file."""

from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.plan.ladder import Flight, Ladder
from remesh.orchestrator.plan.rung import Unit
from remesh.orchestrator.plan.staging import Staging
from remesh.parallel.plan.schedules.catalogue import pipeline_of

DEFAULTS = {
    "max_dp": 4,
    "tp": 1,
    "cp": 1,
    "pp": 1,
    "schedule": "1f1b",
    "zero_stage": 0,
    "zero_group": 0,
    "allow_cross_node_tp": False,
}
KEYS = (*DEFAULTS, "num_leaves")


def flight(**words):
    assert words.keys() <= DEFAULTS.keys()
    asked = {**DEFAULTS, **words}
    pipeline = pipeline_of(asked["schedule"], asked["pp"], 2)
    return Flight.of_units(
        replicas=asked["max_dp"],
        unit=Unit(workers=asked["tp"] * asked["cp"], on_one_node=not asked["allow_cross_node_tp"]),
        copies=asked["cp"],
        shards=asked["zero_group"] if asked["zero_stage"] else 1,
        staging=Staging(schedule=asked["schedule"], pipeline=pipeline, num_leaves=12),
        bit_key=f"tp={asked['tp']}",
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
