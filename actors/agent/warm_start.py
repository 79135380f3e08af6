"""How an agent's processes are started: this imports next to nothing, as all else of an agent may.

So an agent starts its warm process first of all, and both load what they need side by side.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

# The collector would look at what is imported again and again: it is switched on when all is there.
_PROGRAM = "import gc; gc.disable(); from remesh.actors.agent.warm_process import main; main()"

# Set before torch, numpy and pyarrow are loaded: none of them begins a thread by itself, and NCCL
# kills no process on its own (facts of the libraries). Each rank sets its own number of threads.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
}


@dataclass(frozen=True, slots=True)
class Started:
    """A process, and our end of the line to it."""

    process: "subprocess.Popen[bytes]"
    line: socket.socket


def start(spec: bytes, environment: Mapping[str, str], *how: str) -> Started:
    """Begin what `warm_process.py` describes; `spec` is the run's RunSpec, pickled."""
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, os.fdopen(os.memfd_create("spec"), "r+b") as file:
        file.write(spec)
        file.seek(0)
        numbers = (theirs.fileno(), file.fileno())
        own = {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, numbers), *how],
            env={**environment, **ENVIRONMENT, **own},
            stdin=subprocess.DEVNULL,
            pass_fds=numbers,
        )
    return Started(process, line)
