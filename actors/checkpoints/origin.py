"""What the source of an imported model said of its use, kept beside the run's checkpoints.

A job file has no key for the longest context of a model or its special tokens, since training needs
neither. Whoever exports the model again needs both: servers cut at the one and stop at the others.
"""

import json
from collections.abc import Mapping
from typing import Any

from remesh.actors.run.folder import IMPORTED
from remesh.parallel.files.convert_config import words_of
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.bounded_json import parse
from remesh.parallel.state.storage import Storage

_MAX_BYTES = 2**16
_MAX_VALUES = 1000


def keep_words(storage: Storage, words: Mapping[str, Any]) -> None:
    """Makes these the words of the run's source, over those of an earlier attempt."""
    storage.put(IMPORTED, (json.dumps(words, indent=1) + "\n").encode())


def kept_words(storage: Storage) -> dict[str, Any]:
    """Those of the run's source, none for a run that was not imported or of which it is not known.

    Raises: CheckpointError if the record is damaged.
    """
    try:
        encoded = storage.get_range(IMPORTED, 0, _MAX_BYTES + 1)
        return words_of(_table(parse(encoded, max_bytes=_MAX_BYTES, max_values=_MAX_VALUES)))
    except FileNotFoundError:
        return {}
    except (ValueError, CheckpointError) as error:
        raise CheckpointError(
            f"{IMPORTED}, which keeps what the imported model said, is damaged ({error}); delete "
            "it, and correct the config.json that is then written"
        ) from None


def _table(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - as all that the file can be else
    return values
