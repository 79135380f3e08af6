"""Stands where a raylet wants an agent of its own: it serves nothing, and ends with the raylet.

It runs as `python -I -S stand_in.py SESSION_DIR NODE_ID PORT_NAME...` and imports next to nothing.
The raylet waits until its agents have written down the ports of what they serve; -1 is Ray's own
word for nothing. What the raylet says behind these words is for an agent.
"""

import os
import sys
import time

LOOK_S = 1.0
NONE = "-1"


def main() -> None:
    raylet = os.getppid()
    folder, node, *names = (word for word in sys.argv[1:] if not word.startswith("-"))
    for name in names:
        write(f"{folder}/{name}_{node}")
    while os.getppid() == raylet:
        time.sleep(LOOK_S)


def write(path: str) -> None:
    """All of it at once: the raylet reads what it finds. pathlib takes longer than the rest."""
    with open(f"{path}.new", "w") as file:  # noqa: PTH123
        file.write(NONE)
    os.replace(f"{path}.new", path)  # noqa: PTH105


if __name__ == "__main__":
    main()
