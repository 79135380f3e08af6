"""A training state kept as DTensors and saved by torch's distributed checkpoint.

With what its most careful user would give it: cached plans, a stager that keeps its memory. It puts
its files on the disk with fsync, and hashes and verifies nothing.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from torch import Tensor
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, zeros

from remesh.parallel.optim.slots import ADAMW_SLOTS
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.plan.shares import tensor_shares


class DcpState:
    """The same state as DTensors, and memory for it under tensor parallelism."""

    def __init__(self, model: ModelConfig, folder: Path) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.folder = folder
        self.model, self.mesh = model, mesh
        self.state = _dtensors(model, mesh, by_rows=True)
        self.other = _dtensors(model, mesh, by_rows=False)
        self.prepare()
        self.number = 0
        self.newest = folder
        self.uploading: Future[object] | None = None

    def prepare(self) -> None:
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.planner = dcp.DefaultSavePlanner(enable_plan_caching=True)

    def _path(self) -> Path:
        self.number += 1
        return self.folder / str(self.number)

    def start_save(self) -> None:
        started = dcp.async_save(
            self.state,
            checkpoint_id=self._path(),
            async_stager=self.stager,
            planner=self.planner,
        )
        assert isinstance(started, Future)
        self.uploading = started

    def finish(self) -> None:
        """What was started is on disk, and what was saved before is gone."""
        if self.uploading:
            self.uploading.result()
        self.uploading = None
        if dist.get_rank() == 0 and self.folder.exists():
            for path in self.folder.iterdir():
                if int(path.name) < self.number and path != self.newest:
                    shutil.rmtree(path)

    def save(self) -> None:
        self.newest = self._path()
        dcp.save(self.state, checkpoint_id=self.newest, planner=self.planner)

    def load(self) -> None:
        dcp.load(self.state, checkpoint_id=self.newest)

    def load_new(self) -> None:
        state = _dtensors(self.model, self.mesh, by_rows=True)
        dcp.load(state, checkpoint_id=self.newest)

    def load_other(self) -> None:
        dcp.load(self.other, checkpoint_id=self.newest)

    def change(self) -> None:
        self.save()
        self.load_other()


def _dtensors(model: ModelConfig, mesh: DeviceMesh, *, by_rows: bool) -> dict[str, Tensor]:
    """Weights and moments, cut by rows, or as our tensor parallelism cuts them."""
    shares = tensor_shares(model, mesh.size(), 0, sequence=False)
    return {
        tensor: zeros(shape, device_mesh=mesh, placements=[placement])
        for name, shape in parameter_shapes(model).items()
        for placement in [Shard(0) if by_rows else _placement(shape, shares[name].sizes)]
        for tensor in (name, *(slot.tensor(name) for slot in ADAMW_SLOTS))
    }


def _placement(shape: Sequence[int], local_shape: Sequence[int]) -> Placement:
    cut = [dim for dim, size in enumerate(shape) if local_shape[dim] < size]
    return Shard(cut[0]) if cut else Replicate()
