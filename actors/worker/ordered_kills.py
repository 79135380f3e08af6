"""Deaths on order: `--kill` by the process's own signal, each exactly once.

Before it fires, a kill is claimed in the run's storage with the moment of death. The claim keeps it
from firing again when the step is computed again, and tells the controller when the process died.
"""

import os
import time
from typing import Any

from remesh.actors.node.processes import kill, session_members
from remesh.actors.orders import RunSpec
from remesh.actors.storage.file_storage import LocalStorage
from remesh.orchestrator.control.words.run_format import DamagedFileError, from_file, to_file
from remesh.orchestrator.job.kills import Kill


class Faults:
    """The kills of one start of a run, seen from one worker."""

    def __init__(self, *, spec: RunSpec, worker: str, node: str, storage: LocalStorage) -> None:
        self._spec = spec
        self._names = {"worker": worker, "node": node}
        self._storage = storage

    def fire(self, step: int, *, is_last_rank: bool, is_node_victim: bool) -> None:
        """Die now if a kill names this step and this rank; come back otherwise."""
        mine = {"worker": is_last_rank, "node": is_node_victim}
        for index, wanted in enumerate(self._spec.kills):
            if wanted.step == step and mine[wanted.target] and self._claim(index, wanted):
                _die(with_node=wanted.target == "node")

    def _claim(self, index: int, wanted: Kill) -> bool:
        claim = to_file({"died": self._names[wanted.target], "at_s": time.time()})
        return self._storage.put_if_absent(_path(self._spec, index), claim)


def died_at_s(spec: RunSpec, storage: LocalStorage, name: str) -> float | None:
    """Unix time at which this worker or node died on order, None if it did not."""
    for index in range(len(spec.kills)):
        claim = _read(storage, _path(spec, index))
        if claim and claim.get("died") == name and isinstance(claim.get("at_s"), float):
            return float(claim["at_s"])
    return None


def _path(spec: RunSpec, index: int) -> str:
    return f"faults/{spec.run}-{index}.json"


def _read(storage: LocalStorage, path: str) -> Any:
    try:
        return from_file(storage.get(path), path, "delete it")
    except (OSError, DamagedFileError):  # no such claim, or nobody can tell
        return None


def _die(*, with_node: bool) -> None:
    """The node is every process of this one's session (local_cluster.py); this one goes last."""
    me = os.getpid()
    for pid in session_members({os.getsid(0)}) if with_node else ():
        if pid != me:
            kill(pid)
    kill(me)
