"""Commands side by side, the first of which has the right of way on busy processors.

    python tests/support/lanes.py "make cluster" "make check" "make dist"

Tests on real nodes, and those with processes that are killed, wait about as long as they compute:
one after the other they leave a processor idle for minutes. What the first command says is shown as
it comes, what each other one says in one piece as soon as that has ended.
"""

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

# Than the first: deadlines of nodes that train are fractions of a second.
NICER = ("nice", "-n", "5")


def side_by_side(first, *others):
    """0 if all of them have ended well, else 1."""
    codes = []
    with ExitStack() as files:
        lanes = [Lane.start(command, files.enter_context(TemporaryFile())) for command in others]
        lanes.append(Lane(process=subprocess.Popen(shlex.split(first)), said=None))
        running = {lane.process.pid: lane for lane in lanes}
        while running:
            pid, status = os.wait()
            codes.append(os.waitstatus_to_exitcode(status))
            running.pop(pid).end(codes[-1])
    return int(any(codes))


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A command at work; what it says is shown at once where there is no file for it."""

    process: subprocess.Popen
    said: IO | None

    @classmethod
    def start(cls, command, file):
        argv = [*NICER, *shlex.split(command)]
        return cls(process=subprocess.Popen(argv, stdout=file, stderr=file), said=file)

    def end(self, code):
        self.process.returncode = code
        if self.said:
            self.said.seek(0)
            sys.stdout.write(self.said.read().decode(errors="replace"))
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(side_by_side(*sys.argv[1:]))
