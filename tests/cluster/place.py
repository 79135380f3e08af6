"""A folder in which a user runs the command, and what came of it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from waiting import PATIENCE_S, soon

REMESH = str(Path(sys.executable).parent / "remesh")
REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "examples" / "tiny.toml"
SHORT = Path(__file__).parent / "short.toml"
LIMIT_S = 170
LOOK_S = 0.1  # a look may ask a controller, which costs both sides some milliseconds


def slowly(step_s=0.1):
    """Long steps leave the processors to what is tested, and few steps to compare."""
    faults = (f"slow@generation={number},for={step_s},steps=100000" for number in range(1, 40))
    return [word for fault in faults for word in ("--fault", fault)]


SLOWLY = slowly()

# Nobody waits for a checkpoint at step 8 before step 13, nor for copies of what each step made: so
# the steps in between are long, before one in which a worker dies.
KILL_AT_13 = ("--fault", "slow@step=9,for=1,steps=4", "--kill", "worker@13")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str
    report: dict


class Place:
    def __init__(self, root, environment=None, prefix=()):
        """`prefix` stands before every command, such as one that enters another host."""
        self.root = root
        self.environment = {**os.environ, **(environment or {})}
        self.prefix = prefix

    def start(self, *args):
        return subprocess.Popen(
            [*self.prefix, REMESH, *map(str, args)],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_signals,  # noqa: PLW1509 - nothing but two calls between fork and exec
        )

    def remesh(self, *args):
        return self.finish(self.start(*args))

    def run(self, job, *args):
        """The outcome of a run with a report of its own."""
        report = self.root / f"report-{time.monotonic_ns()}.json"
        return self.finish(self.start("run", job, "--report", report, *args), report)

    @staticmethod
    def finish(process, report=None):
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            raise AssertionError(f"still running after {LIMIT_S} s:\n{out}\n{err}") from None
        written = json.loads(report.read_text()) if report and report.exists() else {}
        return Outcome(code=process.returncode, out=out, err=err, report=written)


def _heed_signals():
    """What tests in the background or under nohup ignore, their commands heed."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def until(condition, what):
    """The first true value of `condition`; there is one limit, which ends a hang."""
    found = soon(condition, LOOK_S)
    assert found, f"not within {PATIENCE_S:g} s: {what}"
    return found
