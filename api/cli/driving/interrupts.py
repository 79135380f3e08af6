"""Ctrl-C, SIGTERM and a lost terminal as wishes: the first asks for a saved end, the second ends at
once.
"""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SignalHandler = Callable[[int, FrameType | None], object] | int | None


class Interrupts:
    """Holds the first signal while entered. A second one raises KeyboardInterrupt.

    More are ignored, so that nothing disturbs the clean-up. After a signal the old handlers do not
    come back: the command is about to end. Who runs it under nohup wants no word of the terminal.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[signal.Signals, SignalHandler] = {}

    def __enter__(self) -> Self:
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        heeded = (each for each in SIGNALS if not (ignored and each == signal.SIGHUP))
        self._before = {number: signal.signal(number, self._receive) for number in heeded}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.signal_number is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal_number is None:
            self.signal_number = number
            return
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt
