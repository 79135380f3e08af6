"""Files that appear whole or not at all, also after a power cut."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".partial"


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its name only when the block ends well and its bytes are safe.

    The suffix `.partial` marks it until then; one writer at a time.
    """
    partial = path.with_name(path.name + TEMPORARY)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
