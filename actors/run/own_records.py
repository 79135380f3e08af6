"""A run's own small files, read within bounds and as files, whatever stands there now."""

import errno
from enum import Enum
from typing import Any

from remesh.orchestrator.control.words.run_format import MAX_BYTES, DamagedFileError, from_file
from remesh.orchestrator.job.curve import Fingerprint
from remesh.parallel.state.bounded_json import shown
from remesh.parallel.state.storage import Storage

# Something else than a file in its place; what a network may do is said by its storage.
_NO_FILE = frozenset(
    {errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP, errno.ENOTDIR, errno.EACCES}
)


class Record(Enum):
    """A kind of file with the key that it must hold, and what to do about a damaged one."""

    FINGERPRINT = (
        "fingerprint",
        "bring it back, or delete it: the newest checkpoint tells the same",
    )
    BITS = ("bits", "delete it: it only lets a start say that the bits change")
    CLAIM = ("run", "delete it; the same command then resumes at the last checkpoint")
    CONTACT = ("run", "delete it if no controller of the run is alive")

    @property
    def key(self) -> str:
        return self.value[0]

    @property
    def cure(self) -> str:
        return self.value[1]


def read_record(storage: Storage, kind: Record, place: str, path: str) -> dict[str, Any]:
    """Raises: FileNotFoundError; RunFormatError if another version wrote it; DamagedFileError."""
    name = f"{place}/{path}"
    try:
        encoded = storage.get_range(path, 0, MAX_BYTES + 1)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise DamagedFileError(f"{name} cannot be read: {error.strerror}; {kind.cure}") from None
    values = from_file(encoded, name, kind.cure)
    if kind.key not in values:
        raise DamagedFileError(f"{name} is damaged: it has no {kind.key!r}; {kind.cure}")
    return values


def read_flat(storage: Storage, kind: Record, place: str, path: str) -> Fingerprint:
    """What such a record holds under its key: values by name. Raises as `read_record`."""
    held = read_record(storage, kind, place, path)[kind.key]
    if not isinstance(held, dict) or not all(
        isinstance(value, str | int | float | bool) for value in held.values()
    ):
        raise DamagedFileError(
            f"{place}/{path} is damaged: its {kind.key!r} is {shown(held)}; {kind.cure}"
        )
    return held
