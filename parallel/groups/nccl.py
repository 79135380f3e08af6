"""An NCCL process group that is torn down and built again in a live process.

Non-blocking, so that building can be left and operations be aborted from another thread. Who uses
it sets, before torch is loaded: TORCH_NCCL_ASYNC_ERROR_HANDLING=0, TORCH_NCCL_ENABLE_MONITORING=0,
TORCH_NCCL_RETHROW_CUDA_ERRORS=0, TORCH_NCCL_PROPAGATE_ERROR=0 and TORCH_NCCL_DUMP_ON_TIMEOUT=0:
torch's watchdog kills the process, and here the fence aborts instead.
"""

import os
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed as dist

from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.groups.store import StoreClient
from remesh.parallel.groups.torch_store import TorchStore


def build_nccl(
    rendezvous: Rendezvous, client: StoreClient
) -> tuple[dist.ProcessGroup, Callable[[], None]]:
    """The group on `rendezvous.device`, and what ends its operations: an abort."""
    device = torch.device(rendezvous.device)
    torch.cuda.set_device(device)
    os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(int(rendezvous.form_timeout_s) + 1)
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = 0
    options._timeout = timedelta(seconds=rendezvous.op_timeout_s)  # noqa: SLF001
    options.group_name = f"{rendezvous.generation}/{rendezvous.name}"  # type: ignore[assignment]
    options.global_ranks_in_group = list(range(rendezvous.size))
    store = TorchStore(client)
    backend = dist.ProcessGroupNCCL(store, rendezvous.rank, rendezvous.size, options)
    backend._set_sequence_number_for_group()  # noqa: SLF001
    process_group = dist.ProcessGroup(store, rendezvous.rank, rendezvous.size)
    kind = dist.ProcessGroup.BackendType.NCCL
    process_group._register_backend(device, kind, backend)  # noqa: SLF001
    process_group._set_default_backend(kind)  # noqa: SLF001
    backend.eager_connect_single_device(device)
    return process_group, backend.abort
