"""What the nodes of a cluster offer to a run: processors, until there are GPU ranks.

GPUs are neither reserved nor used. To train beside idle ones is a choice, which the job makes by
`train.device = "cpu"`: a cluster that has some refuses a run that did not choose.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remesh.orchestrator.user_errors import UserError

_NOT_BUILT = (
    "GPU ranks are not built yet: to train on processors and leave the GPUs to others, run it with "
    "--set train.device=cpu"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a node offers: `slots` workers with one processor each."""

    node_id: str
    slots: int


class Offers:
    """The rooms of nodes for a run on this `device`; `say` tells once of a node that has none."""

    def __init__(self, device: str, say: Callable[[str], None]) -> None:
        self._device = device
        self._say = say
        self._told: set[str] = set()

    def room(self, entry: Mapping[str, Any]) -> Room | None:
        """Of a node as Ray lists it, None if it has no processor, or GPUs that nobody chose to
        leave idle.
        """
        if self._device == "auto" and _num_gpus(entry):
            if entry["NodeID"] not in self._told:
                self._told.add(entry["NodeID"])
                self._say(f"{_has_gpus(entry)}, so it is not used: {_NOT_BUILT}")
            return None
        slots = int(entry["Resources"].get("CPU", 0))
        return Room(node_id=str(entry["NodeID"]), slots=slots) if slots else None


def check_device(device: str, entries: Iterable[Mapping[str, Any]]) -> None:
    """Raises: UserError if nodes, as Ray lists them, have GPUs and nobody chose to pass them over.

    Those of dead nodes are gone.
    """
    found = [entry for entry in entries if entry["Alive"] and _num_gpus(entry)]
    if device == "auto" and found:
        raise UserError(f"{_has_gpus(found[0])}, and {_NOT_BUILT}")


def _num_gpus(entry: Mapping[str, Any]) -> float:
    return float(entry["Resources"].get("GPU", 0))


def _has_gpus(entry: Mapping[str, Any]) -> str:
    number = _num_gpus(entry)
    return f"node {entry['NodeManagerAddress']} has {number:g} GPU{'' if number == 1 else 's'}"
