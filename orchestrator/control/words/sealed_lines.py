"""Lines of JSON that prove themselves: the last key of each is a sum of it and of all before it.

So a line that was changed shows, and also one that was dropped, doubled or moved: its neighbours no
longer fit. The sum is a CRC-32, which is against accidents and not against who means it. What lost:
a sum of each line alone, which finds no missing line; a file of sums beside the journal, which can
be lost by itself.
"""

from zlib import crc32

KEY = "crc"

_MARK = f'{{}},"{KEY}":"{{:08x}}"}}}}'
_DIGITS = 8
_SEAL_CHARS = len(_MARK.format("", 0))


def sealed(line: str, before: int = 0) -> tuple[str, int]:
    """A JSON object of one key or more with its sum, and that sum for the next line.

    `before` is the sum of the line before it.
    """
    total = crc32(line.encode(), before)
    return _MARK.format(line[:-1], total), total


def sum_of(line: str) -> int:
    """The sum that a sealed line carries, for the next one. Raises: ValueError if it has none."""
    mark = line[-_SEAL_CHARS:]
    total = int(mark[-_DIGITS - 2 : -2], 16)
    if mark != _MARK.format("", total):
        raise ValueError("it carries no checksum")
    return total


def unsealed(line: str, before: int = 0) -> tuple[str, int]:
    """The JSON object without its sum, and that sum. Raises: ValueError if they do not fit."""
    plain = line[:-_SEAL_CHARS] + "}"
    again, total = sealed(plain, before)
    if again != line:
        raise ValueError("its checksum does not fit: it was changed, or a line before it is gone")
    return plain, total
