"""A storage that runs live in: what it keeps can be set aside within it."""

from typing import Protocol

from remesh.parallel.state.storage import Storage


class RunPlace(Storage, Protocol):
    def move(self, path: str, to: str) -> None:
        """The blob has the other path afterwards, and replaces what was there. A crash may leave it
        at both. Raises: FileNotFoundError if it is not there.
        """
        ...
