"""The Python stacks of another process of ours, also of one that hangs, or is stopped.

py-spy reads them out of the process's memory, without its help. Where the kernel does not let it,
as in a container without SYS_PTRACE, the process is signalled and writes them itself (own_log.py):
a stopped one cannot, and that is what is said then.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from remesh.actors.node.own_log import STACKS, STACKS_SIGNAL
from remesh.actors.node.private_files import open_file, opened
from remesh.actors.node.processes import Process, signal_same

MAX_BYTES = 24 << 10
LIMIT_S = 4.0
PY_SPY = Path(sys.executable).with_name("py-spy")
_POLL_S = 0.02
_QUIET_S = 0.2  # after which a dump is whole


def stacks_of(process: Process, folder: Path, name: str, py_spy: Path = PY_SPY) -> str:
    """All threads of the process, whose log is NAME in `folder`. Cost: a twentieth of a second."""
    read, why_not = _read_by(py_spy, process.pid)
    if read:
        return _bounded(read)
    if process.stopped:
        return f"it is stopped, so it cannot tell; and py-spy could not look: {why_not}\n"
    try:
        return _bounded(_asked(process, folder / f"{name}{STACKS}"))
    except OSError as error:
        return f"it did not tell: {error}; and py-spy could not look: {why_not}\n"


def _read_by(py_spy: Path, pid: int) -> tuple[str, str]:
    """The stacks, without the process's command line, or why there are none."""
    argv = [str(py_spy), "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    start = done.stdout.find("\nThread ") + 1
    if done.returncode == 0 and start:
        return done.stdout[start:], ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "", lines[0] if lines else f"it ended with {done.returncode}"


def _asked(process: Process, path: Path) -> str:
    """What the process writes when it is signalled. Raises: OSError; TimeoutError."""
    with opened(path.parent) as own:
        file = open_file(path, os.O_RDWR, folder=own)
    try:
        os.ftruncate(file, 0)
        if not signal_same(process, STACKS_SIGNAL):
            raise ProcessLookupError("it is gone")
        return os.pread(file, _size_once_quiet(file), 0).decode(errors="replace")
    finally:
        os.close(file)


def _size_once_quiet(file: int) -> int:
    deadline_s = time.monotonic() + LIMIT_S
    size, since_s = 0, time.monotonic()
    while time.monotonic() < deadline_s:
        now = os.fstat(file).st_size
        if now != size:
            size, since_s = now, time.monotonic()
        elif size and time.monotonic() - since_s > _QUIET_S:
            return size
        time.sleep(_POLL_S)
    if size:
        return size
    raise TimeoutError(f"no answer within {LIMIT_S:g} s")


def _bounded(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MAX_BYTES:
        return text
    return encoded[:MAX_BYTES].decode(errors="ignore") + "\n... the rest is left out\n"
