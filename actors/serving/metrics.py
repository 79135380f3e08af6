"""The metrics of a run: one table, shown from the machine's state and the tally of its journals.

Nothing is registered or set: every answer is collected anew from what is there, so a series of
a worker or node that is gone vanishes with it. Values of labels come from closed sets, or name what
is in the cluster now; no label names a step, a path, a moment or a start of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, assert_never

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from remesh.actors.serving.picture import MetricSamples, Picture
from remesh.orchestrator.accounts.durations import Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric. Its samples are values by the values of `labels`; all have the label `run` too.

    A histogram shows the one that `durations` gives, a gauge or counter what `samples` gives.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    samples: Callable[[Picture], MetricSamples] = lambda _: ()
    durations: Callable[[Picture], Histogram] | None = None

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def render(picture: Picture) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([_family(row, picture) for row in TABLE]))
    return generate_latest(registry)


def table(*rows: MetricRow) -> tuple[MetricRow, ...]:
    """The rows. Raises: ValueError for a name that is there twice: one would hide the other."""
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"registered twice: {', '.join(twice)}")
    return rows


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _family(row: MetricRow, picture: Picture) -> Metric:
    labels = ("run", *row.labels)
    match row.kind:
        case "gauge":
            gauge = GaugeMetricFamily(row.name, row.help, labels=labels)
            for values, value in row.samples(picture):
                gauge.add_metric((picture.run, *values), value)
            return gauge
        case "counter":
            counter = CounterMetricFamily(row.name, row.help, labels=labels)
            for values, value in row.samples(picture):
                counter.add_metric((picture.run, *values), value)
            return counter
        case "histogram":
            assert row.durations is not None, row.name
            return _histogram(row, row.durations(picture), picture.run)
        case _:
            assert_never(row.kind)


def _histogram(row: MetricRow, durations: Histogram, run: str) -> Metric:
    family = HistogramMetricFamily(row.name, row.help, labels=("run",))
    bounds = [*map(str, durations.bounds_s), "+Inf"]
    buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
    family.add_metric((run,), buckets=buckets, sum_value=durations.sum_s)
    return family


def _one(value: float | None) -> MetricSamples:
    """A series without further labels; none where there is no value."""
    return () if value is None else (((), value),)


def _each(values: dict[str, float]) -> MetricSamples:
    return (((key,), value) for key, value in values.items())


TABLE = table(
    MetricRow(
        name="remesh_run_info",
        kind="gauge",
        help="Always 1; says which version of Remesh drives the run.",
        labels=("version",),
        samples=lambda p: (((p.version,), 1.0),),
    ),
    MetricRow(
        name="remesh_run_state",
        kind="gauge",
        help="1 for the phase that the run is in, 0 for the others.",
        labels=("state",),
        samples=Picture.states,
    ),
    MetricRow(
        name="remesh_run_state_timestamp_seconds",
        kind="gauge",
        help="Unix time at which the run came into its phase.",
        samples=lambda p: _one(p.tally.goodput.since_s or None),
    ),
    MetricRow(
        name="remesh_run_starts_total",
        kind="counter",
        help="Starts of the run: the first one and each that took it up again.",
        samples=lambda p: _one(p.tally.starts),
    ),
    MetricRow(
        name="remesh_generation",
        kind="gauge",
        help="The newest mesh, counted from 1.",
        samples=lambda p: _one(p.view.generation),
    ),
    MetricRow(
        name="remesh_mesh_degree",
        kind="gauge",
        help="Length of each axis of the mesh; 0 while there is none.",
        labels=("axis",),
        samples=Picture.degrees,
    ),
    MetricRow(
        name="remesh_world_size",
        kind="gauge",
        help="Ranks in the mesh.",
        samples=lambda p: _one(p.world_size),
    ),
    MetricRow(
        name="remesh_rank_info",
        kind="gauge",
        help="1 for each rank of the mesh, with its node.",
        labels=("rank", "node"),
        samples=Picture.ranks,
    ),
    MetricRow(
        name="remesh_workers",
        kind="gauge",
        help="Workers by state: starting, idle, member of the mesh, leaving, ending.",
        labels=("state",),
        samples=Picture.worker_states,
    ),
    MetricRow(
        name="remesh_nodes",
        kind="gauge",
        help="Living nodes by state: used, spare, leaving, drained, quarantined.",
        labels=("state",),
        samples=Picture.node_states,
    ),
    MetricRow(
        name="remesh_node_slots",
        kind="gauge",
        help="Workers that a node has room for.",
        labels=("node",),
        samples=lambda p: (((node.node,), node.slots) for node in p.view.nodes),
    ),
    MetricRow(
        name="remesh_node_workers",
        kind="gauge",
        help="Workers on a node, whatever their state.",
        labels=("node",),
        samples=lambda p: (((node.node,), node.workers) for node in p.view.nodes),
    ),
    MetricRow(
        name="remesh_target_step",
        kind="gauge",
        help="The step at which the run is finished.",
        samples=lambda p: _one(p.view.steps),
    ),
    MetricRow(
        name="remesh_step",
        kind="gauge",
        help="The step that the run stands on; a recovery may take it back.",
        samples=lambda p: _one(p.view.step),
    ),
    MetricRow(
        name="remesh_loss",
        kind="gauge",
        help="Mean loss over the tokens of the newest step, in nats.",
        samples=lambda p: _one(p.last("loss")),
    ),
    MetricRow(
        name="remesh_gradient_norm",
        kind="gauge",
        help="Norm of the gradient at the newest step, before clipping.",
        samples=lambda p: _one(p.last("grad_norm")),
    ),
    MetricRow(
        name="remesh_learning_rate",
        kind="gauge",
        help="Learning rate of the newest step.",
        samples=lambda p: _one(p.last("lr")),
    ),
    MetricRow(
        name="remesh_steps_total",
        kind="counter",
        help="Steps that were finished for the first time.",
        samples=lambda p: _one(p.tally.steps),
    ),
    MetricRow(
        name="remesh_tokens_total",
        kind="counter",
        help="Tokens that were trained for the first time, whatever the layout.",
        samples=lambda p: _one(p.tally.tokens),
    ),
    MetricRow(
        name="remesh_skipped_steps_total",
        kind="counter",
        help="Steps whose update all ranks skipped, because a loss or gradient was not finite.",
        samples=lambda p: _one(p.tally.skipped_steps),
    ),
    MetricRow(
        name="remesh_lost_steps_total",
        kind="counter",
        help="Finished steps whose state was lost, so that they were or will be trained again.",
        samples=lambda p: _one(p.tally.lost_steps),
    ),
    MetricRow(
        name="remesh_step_duration_seconds",
        kind="histogram",
        help="How long a step takes, steps that are trained again included.",
        durations=lambda p: p.tally.step_s,
    ),
    MetricRow(
        name="remesh_phase_seconds_total",
        kind="counter",
        help="Time in each phase, up to the newest event.",
        labels=("phase",),
        samples=lambda p: _each(p.tally.goodput.phase_s),
    ),
    MetricRow(
        name="remesh_productive_seconds_total",
        kind="counter",
        help="Time in steps that were finished for the first time.",
        samples=lambda p: _one(p.tally.goodput.productive_s),
    ),
    MetricRow(
        name="remesh_unproductive_seconds_total",
        kind="counter",
        help="All other time of the run, by the reason why no step was made.",
        labels=("reason",),
        samples=lambda p: _each(p.tally.goodput.unproductive_s),
    ),
    MetricRow(
        name="remesh_failures_total",
        kind="counter",
        help="Failures, each by what it was first known as.",
        labels=("cause",),
        samples=lambda p: _each(dict(p.tally.failures)),
    ),
    MetricRow(
        name="remesh_recoveries_total",
        kind="counter",
        help="Meshes that trained a step after a fault had ended the one before.",
        samples=lambda p: _one(p.tally.recoveries),
    ),
    MetricRow(
        name="remesh_recovery_seconds_total",
        kind="counter",
        help="Time from a fault to the end of the first new step after it, by its parts.",
        labels=("part",),
        samples=lambda p: _each(p.tally.recovery_s),
    ),
    MetricRow(
        name="remesh_checkpoint_duration_seconds",
        kind="histogram",
        help="Time from the end of a checkpoint's step to its commit.",
        durations=lambda p: p.tally.saves.took_s,
    ),
    MetricRow(
        name="remesh_failed_checkpoints_total",
        kind="counter",
        help="Checkpoints that could not be written or committed.",
        samples=lambda p: _one(p.tally.saves.failed),
    ),
    MetricRow(
        name="remesh_last_committed_step",
        kind="gauge",
        help="Step of the newest committed checkpoint.",
        samples=lambda p: _one(p.view.committed_step),
    ),
    MetricRow(
        name="remesh_last_commit_timestamp_seconds",
        kind="gauge",
        help="Unix time of the newest commit of a checkpoint.",
        samples=lambda p: _one(p.tally.saves.saved_at_s),
    ),
)
