"""How a submitted job becomes a driver on the head, and what it knows of itself there."""

import json
import os

from remesh.actors.jobs.questions import Question, read_questions
from remesh.orchestrator.job.submission import Submission, read_metadata
from remesh.orchestrator.user_errors import RemeshError
from remesh.parallel.state.bounded_json import parse

_MAX_BYTES, _MAX_VALUES = 1 << 20, 1 << 17  # an environment variable has 128 KiB
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # what Ray tells the process of a job, by that name

# A shell line, for Ray runs it as one. The first `python` on the head's PATH need not be the one
# that Ray and Remesh are installed for: the raylet, which started the shell's parent, names that.
ENTRY_POINT = (
    r"raylet=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status); "
    r"own=$(tr '\0' '\n' < /proc/$raylet/cmdline | "
    r"sed -n 's/^--python_worker_command=\([^ ]*\) .*/\1/p'); "
    r'for python in "$REMESH_PYTHON" "$own" python3 python; do '
    r'"$python" -c "import remesh" 2>/dev/null && exec "$python" -m remesh.cli drive; done; '
    r"echo 'remesh: Remesh is not installed on the head; install it in the environment of Ray "
    r"there, or name its interpreter in REMESH_PYTHON' >&2; exit 2"
)


def own_questions() -> list[Question] | None:
    """What this process is to ask instead of driving a run, None if nothing."""
    return read_questions(json.loads(os.environ.get(JOB_CONFIG, "{}")).get("metadata"))


def own_submission() -> Submission:
    """What this process is to drive, from what Ray tells the process of a job.

    The environment that the job server gave the driver is dropped: workers need none of their own.
    """
    try:
        told = os.environ.get(JOB_CONFIG, "{}").encode()
        config = dict(parse(told, max_bytes=_MAX_BYTES, max_values=_MAX_VALUES))
    except (TypeError, ValueError):
        config = {}
    submission = read_metadata(config.get("metadata"))
    if submission is None:
        raise RemeshError("this is how a submitted job runs on the cluster; use: remesh submit JOB")
    os.environ[JOB_CONFIG] = json.dumps({**config, "runtime_env": {}})
    return submission
