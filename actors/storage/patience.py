"""Calls over a network: each has a deadline and is made again where that can help."""

import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from remesh.orchestrator.user_text import masked
from remesh.parallel.threads import heard_thread

T = TypeVar("T")

# An answer, though not the one hoped for.
ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """So many tries of `try_s` and a second more for each `bytes_per_s`; pauses that double."""

    num_tries: int = 5
    try_s: float = 20.0
    bytes_per_s: float = 5e6
    pause_s: float = 0.2

    def ask(
        self,
        call: Callable[[float], T],
        *,
        what: str,
        num_bytes: int = 0,
        hidden: Sequence[str] = (),
    ) -> T:
        """The result of `call`, which is handed the seconds that a try may take.

        Raises: OSError that says `what` failed, how, and what to do, without the `hidden` words;
        answers as they are.
        """
        limit_s = self.try_s + num_bytes / self.bytes_per_s
        for number in range(1, self.num_tries + 1):
            try:
                return call(limit_s)
            except ANSWERS:
                raise
            except PermissionError as error:
                cure = "check the credentials and what they are allowed to do"
                said = without(hidden, str(error))
                raise PermissionError(errno.EACCES, f"{what} is refused: {said}; {cure}") from None
            except Exception as error:  # noqa: BLE001 - each library has its own
                failure = str(error) or f"no answer within {limit_s:g} s"
            if number < self.num_tries:
                time.sleep(self.pause_s * 2 ** (number - 1))
        tries = f"failed {self.num_tries} times"
        cure = "check the address, that it answers from here, and the credentials"
        said = without(hidden, failure)
        raise OSError(errno.EIO, f"{what} {tries}, the last time with: {said}; {cure}")


def without(hidden: Sequence[str], text: str) -> str:
    """What a library says, without the options of a URL that were given to it."""
    for word in filter(None, hidden):
        text = text.replace(word, "***")
    return masked(text)


def within(limit_s: float, call: Callable[[], T]) -> T:
    """What the call returns or raises. Raises: TimeoutError; the call then goes on, unheard."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    heard_thread(run, name="storage").start()
    return future.result(limit_s)
