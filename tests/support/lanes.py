"""Commands side by side, the first of which has the right of way on busy processors.

    python tests/support/lanes.py "make cluster" "make check dist"

Tests on real nodes wait more than they compute, and most others do nothing but compute: one after
the other they leave a processor idle for minutes. What the first command says is shown as it comes,
what the others say once it has ended, each in one piece.
"""

import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack

# Than the first: deadlines of nodes that train are fractions of a second.
NICER = ("nice", "-n", "5")


def side_by_side(first, *others):
    """0 if all of them have ended well, else 1."""
    with ExitStack() as files:
        said = [files.enter_context(tempfile.TemporaryFile()) for _ in others]
        started = [
            subprocess.Popen([*NICER, *shlex.split(command)], stdout=file, stderr=file)
            for command, file in zip(others, said, strict=True)
        ]
        codes = [subprocess.run(shlex.split(first), check=False).returncode]
        for process, file in zip(started, said, strict=True):
            codes.append(process.wait())
            file.seek(0)
            sys.stdout.write(file.read().decode(errors="replace"))
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(side_by_side(*sys.argv[1:]))
