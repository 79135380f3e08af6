"""Standard output and standard error where a terminal, a pipe or a disk may take no more of them.

A command that only prints ends with that, as `cat` does; one that drives a run goes quiet and
drives on. Left to themselves, rich and typer end any command whose pipe was closed with code 1,
and Python makes 120 of the code of one whose last words find no room.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO, cast

from remesh.orchestrator.user_errors import RemeshError, UserError


class OutputClosedError(RemeshError):
    """Nobody reads the output any more. There is nobody to tell, so it has no text."""

    exit_code = 128 + signal.SIGPIPE


class OutputError(UserError):
    """The output cannot be written, on a full disk for example."""


class Printed:
    """A stream that breaks once: from then on what is written to it goes nowhere.

    Raises: OutputClosedError or OutputError, then and whenever it is used later, unless it is
    `lasting`. Neither is an OSError, which typer and rich would take for their own affair.
    """

    def __init__(self, stream: TextIO, *, lasting: bool) -> None:
        self.lasting = lasting
        self._stream = stream
        self._broken: RemeshError | None = None

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, action: Callable[[], object]) -> None:
        if self._broken is None:
            try:
                action()
            except OSError as error:
                self._broken = _reason(error)
                _point_nowhere(self._stream)
        if self._broken is not None and not self.lasting:
            raise self._broken


@contextmanager
def standard_streams() -> Iterator[Callable[[], None]]:
    """Within, both streams are Printed. What is called at its end flushes the output, and raises.

    Standard error is lasting: what cannot be said there changes no exit code.
    """
    out = Printed(sys.stdout or _nowhere(), lasting=False)
    err = Printed(sys.stderr or _nowhere(), lasting=True)
    with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
        try:
            yield out.flush
        finally:
            out.lasting = True
            out.flush()
            err.flush()


def go_on_unheard() -> None:
    """From now on the command outlives its output: what it drives is worth more."""
    if isinstance(sys.stdout, Printed):
        sys.stdout.lasting = True


def _reason(error: OSError) -> RemeshError:
    if isinstance(error, BrokenPipeError):
        return OutputClosedError()
    return OutputError(
        f"standard output cannot be written: {error.strerror}; free space, or send it elsewhere"
    )


def _point_nowhere(stream: TextIO) -> None:
    """What its buffer still holds has to go somewhere when Python ends."""
    with suppress(OSError), _nowhere() as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - who asks closes it
