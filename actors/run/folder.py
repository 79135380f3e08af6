"""A run's folder: which run it is, who may write to it, and where it can be taken up.

`fingerprint.json` says what the run computes, `claims/N.json` that a controller has started it for
the N-th time, `run.json` (mode 0600) how to reach the controller that is alive, and `lock` is held
by the command that drives it. `imported.json` is what the source of an imported model said of it.

Checkpoints may lie elsewhere, in a bucket for example. Then the fingerprint and the claims lie
beside them: they guard the checkpoints, also against a start from another folder or machine.
"""

import fcntl
import json
import os
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO

from remesh.actors.run.contact import Contact, ask
from remesh.actors.run.journal_files import read_journals
from remesh.actors.storage.file_storage import OWNER_ONLY, LocalStorage
from remesh.actors.storage.storage_url import open_storage
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.job import Fingerprint, fingerprint_difference
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import committed, read_manifest
from remesh.parallel.state.storage import Storage

FINGERPRINT = "fingerprint.json"
CONTACT = "run.json"
IMPORTED = "imported.json"
LOCK = "lock"
PROBE = ".probe"

_CLAIM = re.compile(r"claims/(\d{6,})\.json", re.ASCII)
_JOURNAL = re.compile(r"journal/(\d{6,})\.jsonl", re.ASCII)
_FORGOTTEN = re.compile(
    r"step-\d+\.gen-\d+/(manifest\.json|rank-\d+-of-\d+\.safetensors)"
    r"|journal/\d+\.jsonl|faults/\w+-\d+\.json|fingerprint\.json|run\.json|imported\.json",
    re.ASCII,
)


class RunFolder:
    """`url` is where the checkpoints lie, None for the folder itself; `guarded` is that place.

    Raises: UserError where the folder or the URL cannot serve, with the reason.
    """

    def __init__(self, path: Path, url: str | None = None) -> None:
        self.path = path
        self.storage = LocalStorage(path)
        self.guarded: Storage = open_storage(url) if url else self.storage
        self._place = url or str(path)
        self._cure = f"with --set checkpoint.{'url=URL' if url else 'dir=DIR'}"

    def probe(self) -> None:
        """See now, not at the first save, that both places take files. Crash leftovers go."""
        try:
            self.storage.sweep()
            _try_to_write(self.storage)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}; free space or give the run "
                f"another folder with --set checkpoint.dir=DIR"
            ) from None
        try:
            _try_to_write(self.guarded)
        except OSError as error:
            raise UserError(
                f"{self._place}: cannot be written: {error.strerror or error}; give the run "
                f"another place {self._cure}"
            ) from None

    def lock(self) -> IO[str]:
        """Hold the folder against other commands until the file is closed, by whatever end."""
        file = (self.path / LOCK).open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise self._in_use(f"the command with pid {holder}") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def check_free(self) -> None:
        """Raises: UserError if a live controller trains here."""
        contact = self.contact()
        if contact and ask(contact, "/status"):
            raise self._in_use(f"run {contact.run}, which is alive (pid {contact.pid})")

    def clear(self) -> None:
        """Forget the run. Files that are not a run's stay, and so do the claims: they are the fence
        against a controller that is still alive somewhere.
        """
        for storage in (self.storage, self.guarded):
            for path in filter(_FORGOTTEN.fullmatch, storage.list("")):
                storage.delete(path)

    def fingerprint(self) -> Fingerprint | None:
        """What the run here computes, None where there is none yet."""
        found = map(_fingerprint, (self.guarded, self.storage))
        return next((one for one in found if one is not None), None)

    def keep(self, fingerprint: Fingerprint) -> None:
        """Make this the run here. Raises: UserError if the folder holds another one."""
        self.check(fingerprint)
        encoded = json.dumps(dict(fingerprint), indent=1).encode()
        for storage in (self.storage, self.guarded):
            storage.put_if_absent(FINGERPRINT, encoded)
        self.check(fingerprint)

    def check(self, fingerprint: Fingerprint) -> None:
        """Raises: UserError if the folder holds another run, or the checkpoints of this one."""
        held = self.fingerprint()
        difference = fingerprint_difference(held, fingerprint) if held is not None else None
        if difference:
            raise UserError(
                f"{self._place} holds another run: {difference}; start over with --fresh, "
                f"or give this run another place {self._cure}"
            )
        left = [] if self.guarded is self.storage else committed(self.storage)
        if left and not committed(self.guarded):
            raise UserError(
                f"{self._place} holds no checkpoint and {self.path} does, of step {left[0].step}; "
                f"copy its folders step-* there, or start over with --fresh"
            )

    def claim(self, run: str) -> int:
        """The number of this start of the run; of all that try exactly one gets it."""
        journals = map(_JOURNAL.fullmatch, self.storage.list("journal/"))
        written = [int(journal[1]) for journal in journals if journal]
        number = max([self.newest_claim(), *written]) + 1
        while not self.guarded.put_if_absent(claim_path(number), _claim_record(run)):
            number += 1
        return number

    def claim_again(self, run: str) -> int | None:
        """A further number for this start of the run, None if another start has one by now."""
        newest = self.newest_claim()
        if json.loads(self.guarded.get(claim_path(newest)))["run"] != run:
            return None
        claimed = self.guarded.put_if_absent(claim_path(newest + 1), _claim_record(run))
        return newest + 1 if claimed else None

    def newest_claim(self) -> int:
        claims = map(_CLAIM.fullmatch, self.guarded.list("claims/"))
        return max((int(claim[1]) for claim in claims if claim), default=0)

    def checkpoints(self) -> tuple[CheckpointState, ...]:
        """Every committed checkpoint, newest first."""
        refs = committed(self.guarded)
        return tuple(CheckpointState(step=ref.step, name=ref.name) for ref in refs)

    def last_generation(self) -> int:
        """The newest generation of all starts so far; the next start goes on from there."""
        generations = [ref.generation for ref in committed(self.guarded)]
        for journal in read_journals(self.path)[-1:]:
            # A start that ended before it formed a mesh knows of the others by its options.
            generations += [journal.options.last_generation, view_of(journal.replay()).generation]
        return max(generations, default=0)

    def contact(self) -> Contact | None:
        """How to reach the live controller, if one left word; it may be dead all the same."""
        try:
            return Contact(**json.loads(self.storage.get(CONTACT)))
        except (OSError, ValueError, TypeError):
            return None

    def publish(self, contact: Contact) -> None:
        """Leave word, for the user's eyes only: the token lets the reader stop the run."""
        encoded = json.dumps(asdict(contact), indent=1).encode()
        self.storage.put(CONTACT, encoded, mode=OWNER_ONLY)

    def _in_use(self, by: str) -> UserError:
        return UserError(
            f"{self.path} is in use by {by}; wait for it or stop it, "
            f"or use another folder with --set checkpoint.dir=DIR"
        )

    def withdraw(self, run: str) -> None:
        """Take the word back, unless somebody else's stands there by now."""
        contact = self.contact()
        if contact and contact.run == run:
            self.storage.delete(CONTACT)


def check_shared(storage: Storage, place: str, claim: tuple[int, str], wait_s: float) -> None:
    """What the start of a run has put into a place is seen from here too: it is one place.

    Some file systems show it with a delay, which is waited for. Raises: CheckpointError.
    """
    number, run = claim
    deadline_s = time.monotonic() + wait_s
    while not _is_claimed(storage, number, run):
        if time.monotonic() > deadline_s:
            raise CheckpointError(
                f"{place} is not one place for all nodes: here it holds no {claim_path(number)} of "
                f"this run, which its start has put there; use a folder that all nodes share with "
                f"--set checkpoint.dir=DIR, or a bucket with --set checkpoint.url=URL"
            )
        time.sleep(wait_s / 20)


def _is_claimed(storage: Storage, number: int, run: str) -> bool:
    try:
        return bool(json.loads(storage.get(claim_path(number)))["run"] == run)
    except FileNotFoundError:
        return False


def _fingerprint(storage: Storage) -> Fingerprint | None:
    try:
        stored: Fingerprint = json.loads(storage.get(FINGERPRINT))
    except FileNotFoundError:
        checkpoints = committed(storage)
        return read_manifest(storage, checkpoints[0]).fingerprint if checkpoints else None
    return stored


def claim_path(number: int) -> str:
    return f"claims/{number:06d}.json"


def _try_to_write(storage: Storage) -> None:
    storage.put(PROBE, b"\0" * 4096)
    storage.delete(PROBE)


def _claim_record(run: str) -> bytes:
    return json.dumps({"run": run, "claimed_s": time.time()}).encode()
