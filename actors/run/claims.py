"""Which start of a run holds it: the claims that lie beside its checkpoints.

Of all controllers that try exactly one gets a number, and the newest number holds the run. Whoever
finds a newer one than its own is no longer asked, on whatever cluster it runs: it commits nothing
and ends.
"""

import re
import time
from dataclasses import dataclass

from remesh.actors.run.own_records import Record, read_record
from remesh.orchestrator.control.words.run_format import to_file
from remesh.orchestrator.user_text import masked
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.storage import Storage

_CLAIM = re.compile(r"claims/(\d{6,})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Claims:
    """Those in a storage, which messages call `place`."""

    storage: Storage
    place: str

    def newest(self) -> int:
        """0 for none."""
        found = map(_CLAIM.fullmatch, self.storage.list("claims/"))
        return max((int(claim[1]) for claim in found if claim), default=0)

    def put(self, run: str, beyond: int) -> int:
        """The first number that is free beyond this one, and is the run's now."""
        number = beyond + 1
        while not self.put_as(run, number):
            number += 1
        return number

    def put_as(self, run: str, number: int) -> bool:
        """Whether the run has got this number."""
        record = to_file({"run": run, "claimed_s": time.time()})
        return self.storage.put_if_absent(claim_path(number), record)

    def is_of(self, run: str, number: int) -> bool:
        """Raises: OSError; RunFormatError or DamagedFileError, which tell another run's."""
        try:
            claim = read_record(self.storage, Record.CLAIM, self.place, claim_path(number))
            return bool(claim["run"] == run)
        except FileNotFoundError:
            return False


def check_shared(storage: Storage, place: str, claim: tuple[int, str], wait_s: float) -> None:
    """What the start of a run has put into a place is seen from here too: it is one place.

    Some file systems show it with a delay, which is waited for. Raises: CheckpointError.
    """
    (number, run), claims = claim, Claims(storage, masked(place))
    deadline_s = time.monotonic() + wait_s
    while not claims.is_of(run, number):
        if time.monotonic() > deadline_s:
            raise CheckpointError(
                f"{masked(place)} is not one place for all nodes: here it holds no "
                f"{claim_path(number)} of this run, which its start has put there; use a folder "
                f"that all nodes share with --set checkpoint.dir=DIR, or a bucket with "
                f"--set checkpoint.url=URL"
            )
        time.sleep(wait_s / 20)


def claim_path(number: int) -> str:
    return f"claims/{number:06d}.json"
