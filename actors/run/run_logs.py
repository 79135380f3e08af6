"""What the processes of a run have written, read from its folder: the end of each, and its news."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remesh.actors.history.journal_files import cause_of
from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.log_carrier import FOLDER, LOG_NAME, logs_in, read_log
from remesh.actors.node.own_log import LOG
from remesh.actors.run.status import read_status
from remesh.orchestrator.job.driver_words import is_over
from remesh.orchestrator.user_errors import UserError

_POLL_S = 0.5
_ASK_EVERY = 6  # polls


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """The log of one process. `written_s` is when its last line came to the run's folder."""

    process: str
    num_bytes: int
    written_s: float
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker that died before the newest start of the run ended, and its last words."""

    worker: str
    cause: str
    last_lines: str


def run_logs(run_dir: Path) -> list[RunLog]:
    """All logs, the one that was written to last at the end. Raises: UserError without a run."""
    read_status(run_dir)
    return sorted((_log(run_dir, name) for name in _names(run_dir)), key=lambda log: log.written_s)


def text_of(run_dir: Path, process: str) -> str:
    """What there is of a process's log. Raises: UserError if there is none."""
    name = f"{process}{LOG}"
    names = _names(run_dir)
    if name not in names:
        raise UserError(
            f"{process}: there is no such process in {run_dir}, or it has written nothing; there "
            f"are logs of: {', '.join(one.removesuffix(LOG) for one in names) or 'none'}"
        )
    return _text(run_dir, name)


def lost_workers(run_dir: Path, num_lines: int) -> list[LostWorker]:
    """Oldest first, each with the last lines of its log, or of its traceback, or of neither."""
    names = _names(run_dir)
    lost = [event for start in read_history(run_dir).starts[-1:] for event in start.lost().values()]
    return [
        LostWorker(
            worker=event.worker,
            cause=cause_of(event),
            last_lines=_last_lines(
                _text(run_dir, name)
                if (name := f"{event.worker}{LOG}") in names
                else event.traceback,
                num_lines,
            ),
        )
        for event in lost
    ]


def follow_logs(
    run_dir: Path,
    process: str | None,
    emit: Callable[[str, str], object],
    *,
    wait: Callable[[float], None] = time.sleep,
    is_live: Callable[[Path], bool] | None = None,
) -> None:
    """Hands on (process, text) of all processes or of one, until the run is not alive any more."""
    is_live = is_live or _is_live
    tails: dict[str, _Tail] = {}
    polls = 0
    while True:
        # Asked before the logs are read, so that what came in between is still passed on.
        goes_on = polls % _ASK_EVERY != 0 or is_live(run_dir)
        polls += 1
        for name in _names(run_dir):
            if process in (None, name.removesuffix(LOG)):
                news = tails.setdefault(name, _Tail()).news(run_dir, name)
                if news:
                    emit(name.removesuffix(LOG), news)
        if not goes_on:
            return
        wait(_POLL_S)


class _Tail:
    """Whole lines that were not passed on yet. A log that was cut goes on where it is now."""

    def __init__(self) -> None:
        self._seen = b""

    def news(self, run_dir: Path, name: str) -> str:
        text = _bytes(run_dir, name)
        whole = text[: text.rfind(b"\n") + 1]
        # A log keeps its end when it is cut, so what was seen last is found again.
        last = self._seen[-256:]
        start = len(self._seen) if whole.startswith(self._seen) else whole.rfind(last) + len(last)
        self._seen = whole
        return whole[start:].decode(errors="replace")


def _is_live(run_dir: Path) -> bool:
    return not is_over(read_status(run_dir))


def _log(run_dir: Path, name: str) -> RunLog:
    found = (run_dir / FOLDER / name).lstat()
    lines = _text(run_dir, name).rstrip().rsplit("\n", 1)
    return RunLog(
        process=name.removesuffix(LOG),
        num_bytes=found.st_size,
        written_s=found.st_mtime,
        last_line=lines[-1],
    )


def _names(run_dir: Path) -> Sequence[str]:
    with suppress(FileNotFoundError), logs_in(run_dir / FOLDER) as own:
        return sorted(filter(LOG_NAME.fullmatch, os.listdir(own)))  # noqa: PTH208 - of an open one
    return ()


def _text(run_dir: Path, name: str) -> str:
    return _bytes(run_dir, name).decode(errors="replace")


def _bytes(run_dir: Path, name: str) -> bytes:
    try:
        return read_log(run_dir / FOLDER, name)
    except FileNotFoundError:  # pruned meanwhile
        return b""
    except OSError as error:
        raise UserError(
            f"{run_dir / FOLDER / name}: cannot be read: {error.strerror or error}"
        ) from None


def _last_lines(text: str, num_lines: int) -> str:
    return "\n".join(text.rstrip().split("\n")[-num_lines:])
