"""The version of the format of a run's own files: its journal, address, fingerprint and claims.

They say it in each file, and one number stands for them all, as no version can go on with a run of
which it can read some files only. A run of another version is refused; no code reads two of them.
"""

import json
from collections.abc import Mapping
from typing import Any

from remesh.orchestrator.user_errors import UserError
from remesh.parallel.state.bounded_json import FORMAT_KEY, brief, check_format, parse, shown

RUN_FORMAT = 4

MAX_BYTES = 1 << 20
_MAX_VALUES = 1 << 16
_CURE = "start over with --fresh, or give the run another folder with --set checkpoint.dir=DIR"


class RunFormatError(UserError):
    """A file of a run that another version has written."""


class DamagedFileError(UserError):
    """A file of a run that is none any more: its name, what is wrong, and the cure."""


def stamped(values: Mapping[str, Any]) -> dict[str, Any]:
    """These values with the version of their format."""
    return {FORMAT_KEY: RUN_FORMAT, **values}


def unstamped(values: Any, path: str) -> dict[str, Any]:
    """The values out of a file. Raises: RunFormatError that names it, both versions and a cure."""
    try:
        check_format(values, RUN_FORMAT)
    except ValueError as error:
        raise RunFormatError(f"{path} cannot be read: {error}; {_CURE}") from None
    return {key: value for key, value in values.items() if key != FORMAT_KEY}


def to_file(values: Mapping[str, Any]) -> bytes:
    return json.dumps(stamped(values), indent=1, allow_nan=False).encode()


def from_file(encoded: bytes, path: str, cure: str) -> dict[str, Any]:
    """Raises: RunFormatError; DamagedFileError if it is no JSON object at all."""
    try:
        values = parse(encoded, max_bytes=MAX_BYTES, max_values=_MAX_VALUES)
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: it is {brief(error)}; {cure}") from None
    if not isinstance(values, dict) or not values:
        raise DamagedFileError(f"{path} is damaged: it holds {shown(values)}; {cure}")
    return unstamped(values, path)
