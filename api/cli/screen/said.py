"""Numbers and moments in words."""

import math
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from remesh.orchestrator.job.driver_words import RunStatus, RunWait
from remesh.orchestrator.user_text import count

NOT_FINITE = "not finite"
STATES: Mapping[str, str] = MappingProxyType(
    {
        "forming": "forming a mesh",
        "restoring": "restoring its state",
        "draining": "ending its mesh at a step boundary",
        "fencing": "leaving its mesh",
    }
)

_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_WHOLE_S = 10  # from here on a fraction of a second says nothing
_MILLION = 1e6


def loss_text(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else NOT_FINITE


def duration_text(length_s: float) -> str:
    """Such as "0.21 s", "40 s", "7 m 12 s", "3 h 5 m", "2 d 4 h"."""
    if not math.isfinite(length_s):
        return NOT_FINITE
    if length_s < _WHOLE_S:
        return f"{length_s:.2g} s"
    whole_s = round(length_s)
    for unit_s, unit, part_s, part in _UNITS:
        if whole_s >= unit_s:
            return f"{whole_s // unit_s} {unit} {whole_s % unit_s // part_s} {part}"
    return f"{whole_s} s"


def speed_text(tokens_per_s: float) -> str:
    if tokens_per_s >= _MILLION:
        return f"{tokens_per_s / _MILLION:,.1f}M tokens/s"
    return f"{tokens_per_s:,.0f} tokens/s"


def share_text(part: float, whole: float = 1.0) -> str:
    """Per cent, and never 100% before it is all."""
    percent = 100 * part / whole if whole else 100.0
    return f"{math.floor(percent) if percent < 100 else 100}%"  # noqa: PLR2004


def moment_text(at_s: float, now_s: float) -> str:
    """The time of day where this shell is, with the date unless it is today."""
    at, now = datetime.fromtimestamp(at_s).astimezone(), datetime.fromtimestamp(now_s).astimezone()
    return f"{at:%H:%M:%S}" if at.date() == now.date() else dated_text(at_s)


def dated_text(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M:%S}"


def iso_text(at_s: float) -> str:
    """With milliseconds and the zone."""
    return datetime.fromtimestamp(at_s).astimezone().isoformat(timespec="milliseconds")


def wait_text(wait: RunWait) -> str:
    limit = "" if wait.limit_s is None else f"; at most {duration_text(wait.limit_s)} more"
    return f"{wait.text}: have {wait.have}, need {wait.need}{limit}"


def state_text(phase: str) -> str:
    return STATES.get(phase.lower(), phase.lower())


def progress_line(status: RunStatus) -> str:
    """Step, loss, speed, time left, mesh and state on one line, as far as they are known."""
    parts = [f"step {status.step:,}/{status.steps:,}"]
    if status.loss is not None:
        parts.append(f"loss {loss_text(status.loss)}")
    if status.tokens_per_s is not None:
        parts.append(speed_text(status.tokens_per_s))
    if status.left_s:
        parts.append(f"left {duration_text(status.left_s)}")
    if status.layout:
        parts.append(status.layout)
    parts += [f"generation {status.generation}", count(status.workers, "worker")]
    parts.append(state_text(status.phase))
    return "  ".join(parts)
