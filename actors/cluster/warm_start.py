"""How an agent's processes are started: this imports next to nothing, as all else of an agent may.

So an agent starts its warm process first of all, and both load what they need side by side. On a
node that a command has started itself one is begun before, with the node: it loads while Ray does,
waits behind a door, and is the first agent's that comes. It then takes on what it would have had
from that agent: environment, search path, standard output, niceness. Before that it forks another
one that waits behind a door of its own, as loaded as itself: so nothing is ever loaded again on
such a node, for an agent that follows, for a node that is wanted again, or for another run. Who
waits ends with the process that began the first one, which is its node.

Alternatives that lost: one process that stays and forks for all agents, which would have to tell
each of them a pid, and deaths of what is not its own; one for all nodes of a host, whose ranks
would be in the session of another node, and neither die nor stand still with their own.
"""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

EARLY = "REMESH_WARM"  # where the door is, in the environment of a node; its pid is added to it
NICENESS = "REMESH_NICENESS"  # of ranks where the agent's own is less, in its environment
WORD = "early"  # in the place of a descriptor
_NEW = "new-"  # before the name of a door that does not answer yet
_TAKEN = "taken-"  # before that of one that is somebody's

# The collector would look at what is imported again and again: it is switched on when all is there.
_PROGRAM = "import gc; gc.disable(); from remesh.actors.agent.warm_process import main; main()"
_NICEST = 19
_BEHIND = 10  # nicer by so much than Ray, which it may not hold up
_FIRST_TO_GO = Path("/proc/self/oom_score_adj")  # whom the kernel takes first for want of memory

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


class WarmProcess(Protocol):
    """As `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Adopted:
    """A process of somebody else's: how it ended is not known, only that it has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if self._has_ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(_PROGRAM, timeout or 0.0)
        return 0

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        return bool(select.select([self._end], [], [], timeout)[0])


@dataclass(frozen=True, slots=True)
class Started:
    """A process, and our end of the line to it."""

    process: WarmProcess
    line: socket.socket


def warm(spec: bytes, environment: Mapping[str, str]) -> Started:
    """One that waits on this node already, else one that begins now."""
    return found_early(spec, environment) or start(spec, environment)


def start(spec: bytes, environment: Mapping[str, str], *how: str) -> Started:
    """Begin what `warm_process.py` describes; `spec` is the run's RunSpec, pickled."""
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, os.fdopen(_filled(spec), "rb") as file:
        numbers = (theirs.fileno(), file.fileno())
        return Started(_begin([*map(str, numbers), *how], environment, numbers), line)


def begin_early(place: str) -> int:
    """The pid of a warm process that waits behind a door there for whoever has use for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        node = os.pidfd_open(os.getpid())
        numbers = (door.fileno(), node)
        process = _begin([WORD, *map(str, numbers)], os.environ, numbers)
        os.close(node)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, process.pid, min(own + _BEHIND, _NICEST))
        _open(door, place, process.pid)
    return process.pid


def found_early(spec: bytes, environment: Mapping[str, str]) -> Started | None:
    """What was begun with this node, or left behind by one that was, if nobody has it yet."""
    place = Path(environment[EARLY]) if EARLY in environment else None
    for door in place.parent.glob(f"{place.name}.*") if place else ():
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = door.with_name(f"{_TAKEN}{door.name}")
        try:
            door.rename(own)  # one of two that come at once finds nothing
            line.connect(str(own))
            own.unlink()
            process = Adopted(int(door.suffix[1:]))
            with os.fdopen(_filled(pickle.dumps(_own(environment)) + spec), "rb") as file:
                socket.send_fds(line, [WORD.encode()], [file.fileno(), 1, 2])
        except OSError:  # another agent has it, or it is gone
            line.close()
        else:
            return Started(process, line)
    return None


def taken_on(door: socket.socket, node: int) -> tuple[socket.socket, int]:
    """In that process: the line to its agent and the file with the spec, once there is one.

    It returns in every process that is taken, each of which leaves one behind that waits, to the
    end of the process that the descriptor `node` stands for.
    """
    line = _agent_at(door, node)
    os.close(node)
    _, (file, *outputs), _, _ = socket.recv_fds(line, len(WORD), 3)
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    with os.fdopen(os.dup(file), "rb", buffering=0) as told:  # what comes behind is not for here
        own: dict[str, Any] = pickle.load(told)  # noqa: S301 - of the agent
    if own["code"] != __file__:
        sys.exit("another Remesh than the agent's: it starts one of its own")
    os.environ.clear()
    os.environ.update({**own["environment"], **ENVIRONMENT})
    sys.path[:] = own["path"]
    with suppress(OSError):  # who is no root stays as nice as it is
        os.setpriority(os.PRIO_PROCESS, 0, own["nice"])
    with suppress(OSError):
        _FIRST_TO_GO.write_text(own["first_to_go"])
    return line, file


def be_nice_enough(environment: Mapping[str, str]) -> None:
    """As nice as NICENESS says, or as it is already: who is nicer by a user's wish stays so."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(own, int(environment.get(NICENESS, own))))


def _agent_at(door: socket.socket, node: int) -> socket.socket:
    """The line to whoever comes first, once another process waits for the next."""
    while True:
        bound = Path(door.getsockname())
        name = bound.with_name(bound.name.removeprefix(_NEW))
        if door.fileno() not in select.select([door.fileno(), node], [], [])[0]:
            name.unlink(missing_ok=True)
            os._exit(0)
        with door:
            line, _ = door.accept()
        if not _is_left_behind():
            return line
        line.close()
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _open(door, str(name.with_suffix("")), os.getpid())


def _is_left_behind() -> bool:
    """Forks; True in the new process, which is nobody's child: its parent has others to look after.

    Where the system allows no other process, nobody waits any more.
    """
    with suppress(OSError):
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return False
        with suppress(OSError):
            if os.fork() == 0:
                return True
        os._exit(0)
    return False


def _open(door: socket.socket, place: str, pid: int) -> None:
    """Its name tells whose it is, and is there once it answers: who came before would only take it
    from those who come later.
    """
    own = Path(f"{place}.{pid}")
    opening = own.with_name(f"{_NEW}{own.name}")
    door.bind(str(opening))
    door.listen(1)
    opening.rename(own)


def _own(environment: Mapping[str, str]) -> dict[str, Any]:
    """What a process has from the one that starts it."""
    return {
        "code": __file__,
        "environment": dict(environment),
        "path": sys.path,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "first_to_go": _FIRST_TO_GO.read_text(),
    }


def _filled(data: bytes) -> int:
    """A file in memory that holds this, to be read from its beginning."""
    number = os.memfd_create("spec")
    os.write(number, data)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _begin(
    words: list[str], environment: Mapping[str, str], kept: tuple[int, ...]
) -> "subprocess.Popen[bytes]":
    own = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words],
        env={**environment, **ENVIRONMENT, **own},
        stdin=subprocess.DEVNULL,
        pass_fds=kept,
    )
