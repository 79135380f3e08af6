"""A folder in which a user runs the command, and what came of it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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

    def remesh(self, *args, limit_s=LIMIT_S):
        return self.finish(self.start(*args), limit_s=limit_s)

    def run(self, job, *args, limit_s=LIMIT_S):
        """The outcome of a run with a report of its own."""
        report = self.root / f"report-{time.monotonic_ns()}.json"
        return self.finish(self.start("run", job, "--report", report, *args), report, limit_s)

    @staticmethod
    def finish(process, report=None, limit_s=LIMIT_S):
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            raise AssertionError(f"still running after {limit_s} s:\n{out}\n{err}") from None
        written = json.loads(report.read_text()) if report and report.exists() else {}
        return Outcome(code=process.returncode, out=out, err=err, report=written)


def _heed_signals():
    """What tests in the background or under nohup ignore, their commands heed."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def until(condition, limit_s, what):
    """The first true value of `condition`, polled until the limit."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if found := condition():
            return found
        time.sleep(LOOK_S)
    raise AssertionError(f"not within {limit_s} s: {what}")
