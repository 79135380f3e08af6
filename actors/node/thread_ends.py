"""What becomes of an actor when a thread of its own dies: it ends too, which is news to others."""

import os
import threading
from collections.abc import Callable

from remesh.parallel.threads import is_ours


def end_with_own_threads(last_word: Callable[[str, BaseException], object]) -> None:
    """From now on an exception that nobody in the thread hears ends the process.

    Its traceback is written first, then `last_word` is told the thread's name and the error.
    """
    write = threading.excepthook

    def end(args: threading.ExceptHookArgs) -> None:
        write(args)
        if not is_ours(args.thread) or args.exc_value is None:
            return
        try:
            last_word(args.thread.name if args.thread else "", args.exc_value)
        finally:
            os._exit(1)

    threading.excepthook = end
