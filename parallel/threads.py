"""Threads whose exceptions somebody hears: none is started anywhere else.

A thread that dies in silence looks like work that takes long. So what ends one goes to `failed`, or
without one to the process's `threading.excepthook`, which tells the threads of ours by their names:
in an actor it ends the actor, whose death is news (actors/node/thread_ends.py). What lost: a hook
for every thread, which would make an actor die of a library's.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_OURS = "remesh "


def heard_thread(
    run: Callable[[], object],
    *,
    name: str,
    failed: Callable[[Exception], object] | None = None,
) -> threading.Thread:
    """A thread that is not started yet, and that nobody waits for at the end of the process.

    `failed` is called by the thread, which ends with that; the traceback is logged before.
    """

    def heard() -> None:
        try:
            run()
        except Exception as error:
            if failed is None:
                raise
            logging.getLogger(__name__).exception("thread %s has failed", name)
            failed(error)

    return threading.Thread(target=heard, name=f"{_OURS}{name}", daemon=True)


def is_ours(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.name.startswith(_OURS)


def heard(outcome: "Future[Any]") -> None:
    """Log the error of work that was submitted, if it ends in one: nobody asks for its outcome."""
    outcome.add_done_callback(_log_error)


def _log_error(outcome: "Future[Any]") -> None:
    error = None if outcome.cancelled() else outcome.exception()
    if error is not None:
        logging.getLogger(__name__).error("work that was submitted has failed", exc_info=error)
