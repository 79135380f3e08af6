"""A process's own log: its standard output and error on a file of ours, from the descriptors up.

So what a library or the interpreter itself writes as it dies lands there too: an abort in C++, the
stacks of a segmentation fault. The file lies in a private folder of the node, where writing never
waits for a network, and log_carrier.py carries it to the run's folder. A lock on it, which the
kernel drops with the process, says that it is still written to. What lost: Ray's capture, which is
in another folder on each node and gone with the cluster.
"""

import faulthandler
import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path

from remesh.actors.node.private_files import make_folder, open_file, opened
from remesh.actors.node.stamps import folder_of

LOG = ".log"
STACKS = ".stacks"
STACKS_SIGNAL = signal.SIGUSR2
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def log_folder_of(run: str, node: str) -> Path:
    """The folder of the logs of one run on one node, beside that of its stamps."""
    return Path(f"{folder_of(run, node)}.logs")


def divert(folder: Path, name: str) -> None:
    """From now on this process writes to NAME.log, and its stacks to NAME.stacks when signalled.

    The stacks come from the signal's own handler, in C, so that a thread that holds the
    interpreter, or waits in a collective, hinders nobody. Raises: OSError.
    """
    assert "/" not in name, name
    make_folder(folder)
    with opened(folder) as own:
        log = _nameless(folder / f"{name}{LOG}", own)
        fcntl.flock(log, fcntl.LOCK_SH)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        faulthandler.enable(file=2)
        # The descriptor stays open for good. Who finds the file may signal: so it is named last.
        stacks = _nameless(folder / f"{name}{STACKS}", own)
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        for ending in (LOG, STACKS):
            os.replace(f".{name}{ending}", f"{name}{ending}", src_dir_fd=own, dst_dir_fd=own)


def _nameless(path: Path, own: int) -> int:
    """An empty file under a name that nobody looks for."""
    temporary = path.with_name(f".{path.name}")
    with suppress(FileNotFoundError):
        os.unlink(temporary.name, dir_fd=own)
    return open_file(temporary, _FLAGS | os.O_EXCL, folder=own)
