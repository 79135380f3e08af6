"""The process that owns an embedded Ray cluster: it starts the nodes and outlives nobody.

It runs as `python -m remesh.actors.cluster.supervisor FOLDER`, reads one JSON object a line from
standard input (`{"argv": [...], "env": {...}, "log": path}` starts a node) and answers each with
the node's pid. The end of that pipe, by whatever death of the command that held it, ends every
process of every node and removes FOLDER, and from shared memory what dead vaults have left. A Ray
worker has its own process group but keeps its node's session, so nodes are told apart by session
id; a child whose parent died is adopted here and reaped, or killed at the end, which reaches those
that opened a session of their own. Should it be killed itself, the kernel ends its nodes.

Alternatives that lost: `ray stop` ends every Ray on the machine; searching processes by their
environment fails, because `ray::` processes overwrite it; atexit handlers do not run on SIGKILL.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remesh.actors.node.leftovers import sweep_all
from remesh.actors.node.processes import kill, processes

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_LIMIT_S = 10.0
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sessions: list[int] = []
    try:
        for line in _requests():
            request = json.loads(line)
            sessions.append(_start(request))
            os.write(1, f"{sessions[-1]}\n".encode())
    finally:
        _end(sessions)
        shutil.rmtree(sys.argv[1], ignore_errors=True)
        sweep_all()


def _requests() -> Iterator[bytes]:
    """Lines of standard input until its end; children are reaped in between."""
    buffer = b""
    while True:
        _reap()
        readable, _, _ = select.select([0], [], [], 0.5)
        if not readable:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        yield from lines


def _start(request: dict[str, Any]) -> int:
    supervisor = os.getpid()

    def end_with_it() -> None:
        """In the child: killed as the supervisor is. It may be gone already."""
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)

    with Path(request["log"]).open("ab") as log:
        process = subprocess.Popen(
            request["argv"],
            env=request["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_it,  # noqa: PLW1509 - there are no other threads here
        )
    return process.pid


def _end(sessions: list[int]) -> None:
    """Kill and reap until no child is left: a process may fork while the list is read."""
    limit_s = time.monotonic() + REAP_LIMIT_S
    while _reap() and time.monotonic() < limit_s:
        for pid in _left(set(sessions)):
            kill(pid)
        time.sleep(0.01)


def _left(sessions: set[int]) -> list[int]:
    """Pids of all that live in these sessions, or were adopted when their parents died."""
    me = os.getpid()
    return [found.pid for found in processes() if found.session in sessions or found.parent == me]


def _reap() -> bool:
    """Whether there are children, once those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
