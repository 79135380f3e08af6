"""A run around its training: its name, what is kept of it, who takes part, who may watch."""

from ipaddress import IPv4Address
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from remesh.orchestrator.job.tables.kinds import (
    TABLE,
    Count,
    CountOrZero,
    Degree,
    DegreeOrZero,
    Degrees,
    Folder,
    FolderOrUrl,
    Name,
    Positive,
)


class JobTable(BaseModel):
    """`name` stands in paths and metrics; `seed` keys the parameters and the order of the data."""

    model_config = TABLE
    name: Name
    """Stands in paths, metrics and events."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Keys the initial parameters and the order of the data."""


class CheckpointTable(BaseModel):
    """A run is its `dir`, `runs/NAME` by default. Checkpoints lie at `url`, by default there too.

    One is saved at every `every`-th step. Those that stay are the newest `keep`, the `keep_best`
    with the lowest loss, those of every `keep_every`-th step, and one that is 50 to 150 steps old.

    After every `snapshot_every`-th step what only one node holds goes to the vaults of two: as
    often as costs less than a hundredth of a step with "auto", and every two seconds unless that
    costs a tenth, never with 0. A vault takes up to `vault_bytes` of its node's memory, as much as
    it needs if that is 0.
    """

    model_config = TABLE
    dir: Folder | None = None
    """Folder of the run; `runs/NAME` by default."""
    url: FolderOrUrl | None = None
    """Where checkpoints lie, any URL that fsspec knows; `dir` by default."""
    every: Count = 20
    """Steps from one checkpoint to the next."""
    keep: Count = 3
    """The newest ones that stay, besides one that is 50 to 150 steps old."""
    keep_every: CountOrZero = 0
    """Those of every so many steps stay too; 0 stands for none."""
    keep_best: CountOrZero = 0
    """So many with the lowest loss stay too."""
    snapshot_every: CountOrZero | Literal["auto"] = "auto"
    """Steps between snapshots in memory; 0 is never, "auto" as often as costs under a hundredth of
    a step, and every two seconds unless that costs a tenth.
    """
    vault_bytes: CountOrZero = 0
    """Bytes of a node's memory for snapshots; 0 stands for as many as are needed."""


class ElasticTable(BaseModel):
    """How far the run may shrink and grow, and how long it waits.

    `patience_s` is the one knob that every deadline follows from: silence longer than that makes a
    node or a worker a suspect. More than `max_failures` failures without `healthy_steps` steps in
    between end the run. `wait_limit_s` bounds the wait for enough workers. A submitted run goes on
    without its driver for `orphan_after_s`, so that it survives a restart of the head.

    The run uses up to `max_nodes` nodes of the cluster, all of them if it is left out; it waits
    while there are fewer than `min_nodes`.

    Without `same_bits` single microbatches are dealt out and gradients added up as is fastest: the
    bits then depend on the number of workers and on `zero`.

    Pipelines may have any of `pp` stages instead of `parallel.pp`: of the meshes that there are
    workers for the largest one is taken, of equally large ones that which is named first,
    `parallel.pp` before all others.

    Likewise groups may have any of `tp`, rings any of `cp`, and any of `ep` replicas share experts.
    These change the bits, so they are taken only where a mesh of the job's own has no room, and
    left as soon as one has.
    """

    model_config = TABLE
    min_nodes: Degree = 1
    """Below so many nodes the run waits."""
    max_nodes: Degree | None = None
    """More nodes than these are spares; all are used by default."""
    max_workers: Degree = 4
    """Largest number of workers in the mesh, by which the number of leaves is chosen."""
    min_workers: Degree = 1
    """Below so many workers the run waits."""
    pp: Degrees = ()
    """Other numbers of stages that a pipeline may have, such as [4, 2, 1], the best one first; only
    those of `parallel.pp` by default.
    """
    tp: Degrees = ()
    """Other numbers of workers that may share each layer, such as [2, 1]; other bits, so only where
    there is no room for `parallel.tp`.
    """
    cp: Degrees = ()
    """Other numbers of workers that may share each sequence, likewise."""
    ep: Degrees = ()
    """Other numbers of replicas that may share the experts of a layer, likewise."""
    spares: DegreeOrZero = 0
    """Warm workers beside the mesh."""
    max_failures: CountOrZero = 8
    """Failures without `healthy_steps` steps in between that end no run."""
    healthy_steps: Count = 100
    """Steps after which failures are forgiven."""
    patience_s: Annotated[float, Field(ge=0.1, le=60)] = 0.5
    """Seconds of silence after which a node or worker is a suspect; every deadline follows from
    it.
    """
    wait_limit_s: Positive = 600.0
    """Seconds that a run waits for enough workers."""
    orphan_after_s: Positive = 1800.0
    """Seconds that a submitted run goes on without its driver."""
    same_bits: bool = True
    """Same bits at every number of workers; without it steps may be faster."""


class MetricsTable(BaseModel):
    """Where Prometheus finds the run's metrics without a token: `port` 0 is a free one.

    Left out, the metrics are at the status port only, which wants the token. `host` is an address
    of the controller's node; 0.0.0.0, for all of them, shows the metrics to the whole network.
    `names` are those of the internet by which they may be asked; others are no names of this node.
    """

    model_config = TABLE
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of the metrics; 0 picks a free one, and without one they need the token of the status
    port.
    """
    host: str = "127.0.0.1"
    """IPv4 address of the controller's node at which they are; 0.0.0.0 shows them to the whole
    network.
    """
    names: Annotated[tuple[str, ...], Field(strict=False, max_length=100)] = ()
    """Names of the internet by which they may be asked, such as ["head.example.org"]."""

    @model_validator(mode="after")
    def _host_is_an_address(self) -> Self:
        try:
            IPv4Address(self.host)
        except ValueError:
            msg = f"metrics.host = {self.host!r} is no IPv4 address; use 127.0.0.1, or 0.0.0.0"
            raise ValueError(msg) from None
        return self
