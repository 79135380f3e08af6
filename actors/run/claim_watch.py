"""Whether somebody else has the run by now, on another cluster for example.

Nobody tells a controller that another start has taken its run: they may share nothing but the
storage. It looks there every few seconds, not at its next commit only, which may be hours away.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from remesh.actors.run.claims import Claims
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.threads import heard_thread

EVERY_S = 5.0


class ClaimWatch:
    """`followed` is called with the newer number if another controller of this start has it, and
    `overtaken` if another start has; then the watch is over.
    """

    def __init__(
        self,
        claims: Claims,
        own: tuple[int, str],
        *,
        followed: Callable[[int], object],
        overtaken: Callable[[int], object],
        every_s: float = EVERY_S,
    ) -> None:
        self._claims = claims
        self._own = own
        self._followed = followed
        self._overtaken = overtaken
        self._every_s = every_s
        self._ends = threading.Event()

    def start(self) -> None:
        heard_thread(self._run, name="claims").start()

    def end(self) -> None:
        self._ends.set()

    def look(self) -> bool:
        """Whether somebody has been found, and told of. Raises: OSError."""
        number, run = self._own
        newest = self._claims.newest()
        if newest <= number:
            return False
        with suppress(UserError):  # one of another version, or damaged by now, is another start's
            if self._claims.is_of(run, newest):
                self._followed(newest)
                return True
        self._overtaken(newest)
        return True

    def _run(self) -> None:
        found = False
        while not found and not self._ends.wait(self._every_s):
            with suppress(OSError):  # storage that does not answer says nothing of claims
                found = self.look()
