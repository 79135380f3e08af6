"""The version of the format of a run's own files: its journal, address, fingerprint and claims.

They say it in each file, and one number stands for them all, as no version can go on with a run of
which it can read some files only. A run of another version is refused; no code reads two of them.
"""

import json
from collections.abc import Mapping
from typing import Any

from remesh.orchestrator.user_errors import UserError
from remesh.parallel.state.bounded_json import FORMAT_KEY, check_format, parse

RUN_FORMAT = 2

_MAX_BYTES = 1 << 20
_MAX_VALUES = 1 << 16
_CURE = "start over with --fresh, or give the run another folder with --set checkpoint.dir=DIR"


class RunFormatError(UserError):
    """A file of a run that another version has written."""


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


def from_file(encoded: bytes, path: str) -> dict[str, Any]:
    """Raises: RunFormatError; ValueError if it is no file of JSON at all."""
    return unstamped(parse(encoded, max_bytes=_MAX_BYTES, max_values=_MAX_VALUES), path)
