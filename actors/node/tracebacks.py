"""An error as an event can carry it: the end of its traceback, bounded, without credentials."""

import traceback

from remesh.orchestrator.user_text import masked

MAX_BYTES = 4096
_CUT = "...\n"


def traceback_of(error: BaseException) -> str:
    return tail("".join(traceback.format_exception(error)))


def tail(text: str) -> str:
    """The last lines of it, `MAX_BYTES` at most: an error's own words stand at the end."""
    encoded = masked(text).encode(errors="replace")
    if len(encoded) <= MAX_BYTES:
        return encoded.decode()
    kept = encoded[-(MAX_BYTES - len(_CUT)) :]
    return _CUT + (kept.partition(b"\n")[2] or kept).decode(errors="ignore")
