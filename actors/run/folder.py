"""A run's folder: which run it is, who may write to it, and where it can be taken up.

`fingerprint.json` says what the run computes, `bits.json` with which bits since its last start,
`claims/N.json` that a controller has started it for the N-th time, `run.json` (mode 0600) how to
reach the controller that is alive, and `lock` is held by the command that drives it.
`imported.json` is what the source of an imported model said of it. `.old-N` is a run that a fresh
start has set aside.

Checkpoints may lie elsewhere, in a bucket for example. Then the fingerprint and the claims lie
beside them: they guard the checkpoints, also against a start from another folder or machine.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import newest_generation_of
from remesh.actors.run.claims import Claims
from remesh.actors.run.contact import Contact
from remesh.actors.run.liveness import who_holds
from remesh.actors.run.own_records import Record, read_flat, read_record
from remesh.actors.storage.file_storage import OWNER_ONLY, LocalStorage
from remesh.actors.storage.run_place import RunPlace
from remesh.actors.storage.storage_url import open_storage
from remesh.orchestrator.control.words import codec
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.control.words.run_format import (
    DamagedFileError,
    RunFormatError,
    to_file,
)
from remesh.orchestrator.job.amendments import parted
from remesh.orchestrator.job.curve import Fingerprint, refusal
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import masked
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import (
    committed,
    go_back,
    newest_numbers,
    read_manifest,
)
from remesh.parallel.state.root_manifest import CheckpointRef, parse_name
from remesh.parallel.state.storage import Storage

FINGERPRINT = "fingerprint.json"
BITS = "bits.json"
CONTACT = "run.json"
IMPORTED = "imported.json"
LOCK = "lock"
PROBE = ".probe"

_JOURNAL = re.compile(r"journal/(\d{6,})\.jsonl", re.ASCII)
_ROOMS = ("claims", "journal", "faults")


class RunFolder:
    """`url` is where the checkpoints lie, None for the folder itself; `guarded` is that place.

    Raises: UserError where the folder or the URL cannot serve, with the reason.
    """

    def __init__(self, path: Path, url: str | None = None) -> None:
        self.path = path
        self.storage = LocalStorage(path)
        self.guarded: RunPlace = open_storage(url) if url else self.storage
        self._place = masked(url) if url else str(path)
        self.claims = Claims(self.guarded, self._place)
        self._cure = f"with --set checkpoint.{'url=URL' if url else 'dir=DIR'}"

    def probe(self) -> None:
        """See now, not at the first save, that both places take files. Crash leftovers go."""
        self._sweep()
        try:
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

    def _sweep(self) -> None:
        try:
            there = self.storage.folders()
            self.storage.sweep(["", *(f for f in there if f in _ROOMS or parse_name(f))])
        except NotADirectoryError:
            return  # a file in its place: writing to it says so
        except OSError as error:
            raise UserError(
                f"{error.filename}: cannot be read: {error.strerror}; it belongs to the run in "
                f"{self.path}: let this user read it, or give the run another folder with "
                f"--set checkpoint.dir=DIR"
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

    def check_free(
        self,
        *,
        fresh: bool = False,
        say: Callable[[str], None] | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises: UserError if a controller that may be alive trains here, or one of another
        version may.

        With `say`, one that cannot be reached is waited for until it must be gone. A fresh start
        goes past one of another version: its claim is the fence against that one too.
        """
        with suppress(*((RunFormatError,) if fresh else ())):
            contact = self.contact()
            heard = None if fresh else say
            if contact and (by := who_holds(self.path, contact, heard, wait)):
                raise self._in_use(by)

    @property
    def places(self) -> tuple[RunPlace, ...]:
        """Where the run is kept, the one that guards the checkpoints first."""
        same = self.guarded is self.storage
        return (self.storage,) if same else (self.guarded, self.storage)

    def check_kept(self) -> None:
        """Raises: UserError if the journal tells of checkpoints, and none is there."""
        starts = read_history(self.path).starts
        known = [found for start in starts if (found := start.committed())]
        if known and not self.checkpoints():
            raise UserError(
                f"{self._place} holds no checkpoint, and the journal in {self.path} tells of "
                f"{known[-1].name}; bring it back (is the place mounted, is it the same as "
                f"before?), or start over with --fresh"
            )

    def fingerprint(self) -> Fingerprint | None:
        """What the run here computes, None where there is none yet."""
        places = ((self.guarded, self._place), (self.storage, str(self.path)))
        found = (_fingerprint(storage, place) for storage, place in places)
        return next((one for one in found if one is not None), None)

    def keep(self, fingerprint: Fingerprint) -> None:
        """Make this the run here. Raises: UserError if the folder holds another one."""
        self.check(fingerprint)
        encoded = to_file({"fingerprint": dict(fingerprint)})
        for storage in (self.storage, self.guarded):
            storage.put_if_absent(FINGERPRINT, encoded)
        self.check(fingerprint)

    def amend(self, fingerprint: Fingerprint) -> None:
        """The run here goes on with this fingerprint, which differs by what changes on the way."""
        encoded = to_file({"fingerprint": dict(fingerprint)})
        for storage in (self.storage, self.guarded):
            storage.put(FINGERPRINT, encoded)

    def bits(self) -> Fingerprint | None:
        """What shaped the bits of the run here since its last start, None where nothing tells."""
        for storage, place in ((self.guarded, self._place), (self.storage, str(self.path))):
            with suppress(FileNotFoundError):
                return read_flat(storage, Record.BITS, place, BITS)
        return None

    def keep_bits(self, bits: Fingerprint) -> None:
        """These shape them from this start on."""
        encoded = to_file({"bits": dict(bits)})
        for storage in (self.storage, self.guarded):
            storage.put(BITS, encoded)

    def check(self, fingerprint: Fingerprint) -> None:
        """Raises: UserError if the folder holds another run, or the checkpoints of this one."""
        held = self.fingerprint()
        found = refusal(parted(held)[0], fingerprint) if held is not None else None
        if found:
            raise UserError(
                f"{self._place} holds another run: {found}; start over with --fresh, "
                f"or give this run another place {self._cure}"
            )
        left = [] if self.guarded is self.storage else committed(self.storage)
        if left and not committed(self.guarded):
            raise UserError(
                f"{self._place} holds no checkpoint and {self.path} does, of step {left[0].step}; "
                f"copy its folders step-* there, or start over with --fresh"
            )

    def claim(self, run: str) -> int:
        """The number of this start of the run; of all that try exactly one gets it.

        It is beyond those of all that has been left here, whose claims may be gone.
        """
        journals = map(_JOURNAL.fullmatch, self.storage.list("journal/"))
        written = [int(journal[1]) for journal in journals if journal]
        newest_start, _ = newest_numbers(self.guarded)
        return self.claims.put(run, max(self.newest_claim(), newest_start, *written, 0))

    def claim_again(self, run: str) -> int | None:
        """A further number for this start of the run, None if another start has one by now."""
        newest = self.newest_claim()
        if not self.claims.is_of(run, newest) or not self.claims.put_as(run, newest + 1):
            return None
        return newest + 1

    def newest_claim(self) -> int:
        return self.claims.newest()

    def checkpoints(self) -> tuple[CheckpointState, ...]:
        """Every committed checkpoint that the run has not gone back behind, newest first."""
        refs = committed(self.guarded)
        return tuple(CheckpointState(step=ref.step, name=ref.name) for ref in refs)

    def stand_on(self, step: int, *, generation: int, start: int) -> None:
        """The start goes on from this step with this generation: what others save of later ones is
        abandoned from now on, by all that read the run. A first start has nobody before it.
        """
        if start > 1:
            go_back(self.guarded, CheckpointRef(step=step, generation=generation, start=start))

    def last_generation(self) -> int:
        """The newest generation of all starts so far; the next start goes on from there."""
        _, left = newest_numbers(self.guarded)  # a damaged journal may tell of fewer
        newest = read_newest(self.path).starts[-1:]
        return max(left, *map(newest_generation_of, newest)) if newest else left

    def contact(self) -> Contact | None:
        """How to reach the live controller, if one left word; it may be dead all the same.

        Raises: RunFormatError if that is one of another version.
        """
        try:
            values = read_record(self.storage, Record.CONTACT, str(self.path), CONTACT)
            contact: Contact = codec.decode(Contact, values)
        except (OSError, ValueError, DamagedFileError):
            return None
        return contact

    def publish(self, contact: Contact) -> None:
        """Leave word, for the user's eyes only: the token lets the reader stop the run."""
        encoded = to_file(codec.encode(Contact, contact))
        self.storage.put(CONTACT, encoded, mode=OWNER_ONLY)

    def beat(self) -> None:
        """Renew the word of the live controller."""
        with suppress(OSError):  # a folder that is gone is told by who writes to it
            os.utime(self.path / CONTACT)

    def _in_use(self, by: str) -> UserError:
        return UserError(
            f"{self.path} is in use by {by}; wait for it or stop it, "
            f"or use another folder with --set checkpoint.dir=DIR"
        )

    def withdraw(self, run: str) -> None:
        """Take the word back, unless somebody else's stands there by now."""
        with suppress(RunFormatError):
            contact = self.contact()
            if contact and contact.run == run:
                self.storage.delete(CONTACT)


def _fingerprint(storage: Storage, place: str) -> Fingerprint | None:
    try:
        return read_flat(storage, Record.FINGERPRINT, place, FINGERPRINT)
    except FileNotFoundError:
        return _fingerprint_of_checkpoints(storage)


def _fingerprint_of_checkpoints(storage: Storage) -> Fingerprint | None:
    """As the newest one that can be read has it. Raises: CheckpointError if there is none."""
    checkpoints = committed(storage)
    for ref in checkpoints:
        with suppress(CheckpointError):
            return read_manifest(storage, ref).fingerprint
    return read_manifest(storage, checkpoints[0]).fingerprint if checkpoints else None


def _try_to_write(storage: Storage) -> None:
    storage.put(PROBE, b"\0" * 4096)
    storage.delete(PROBE)
